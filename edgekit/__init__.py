"""edgekit: one model, many small machines, measured and chosen with reasons."""

__version__ = "0.1.0"
