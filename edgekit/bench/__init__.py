"""How fast, truly: candidates measured on this machine, each in a process of its own."""
