"""Open a model in a runtime, and prove where it ran."""
