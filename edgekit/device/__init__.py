"""What is this machine. Standard library only, Python 3.8 and newer: the same files are piped to bare boards."""
