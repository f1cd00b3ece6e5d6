"""Declared pre- and post-processing, one implementation for all: a file -> tensors -> an answer."""

from edgekit.pipeline.answers import Answer
from edgekit.pipeline.pipeline import Pipeline, Prepared, Result, open_pipeline, run

__all__ = ["Answer", "Pipeline", "Prepared", "Result", "open_pipeline", "run"]
