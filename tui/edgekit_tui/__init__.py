"""The Textual fleet console. Draws what `edgekit.fleet` knows; imports nothing of the device side."""
