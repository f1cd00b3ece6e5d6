"""Collect a fleet: every window exactly once, in a history that stays mergeable, for people and for Prometheus."""
