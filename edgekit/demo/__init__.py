"""The main job on this machine, told step by step (`edgekit demo`)."""
