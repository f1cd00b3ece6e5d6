"""Telemetry: payloads, histograms, the link to the broker, and the broker itself."""
