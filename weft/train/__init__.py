"""Training on the machine that serves: LoRA on the base as it is, mapped and quantised."""

from weft.train.learner import Learner, Lesson
from weft.train.options import Options
from weft.train.run import Run, StepResult
from weft.train.training import Training, dpo, lora
from weft.train.vectors.options import VectorOptions
from weft.train.vectors.training import VectorTraining, embedder, reranker

__all__ = [
    "Learner",
    "Lesson",
    "Options",
    "Run",
    "StepResult",
    "Training",
    "VectorOptions",
    "VectorTraining",
    "dpo",
    "embedder",
    "lora",
    "reranker",
]
