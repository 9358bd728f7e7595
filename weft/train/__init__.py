"""Training on the machine that serves: LoRA on the base as it is, mapped and quantised."""

from weft.train.learner import Learner, Lesson
from weft.train.run import Options, Run, StepResult

__all__ = ["Learner", "Lesson", "Options", "Run", "StepResult"]
