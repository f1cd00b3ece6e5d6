"""Devices that do not exist, behaving as real ones."""
