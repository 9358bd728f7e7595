"""Training on the machine that serves: gradients of a checkpoint's loss, on any backend."""

from weft.train.learner import Learner, Lesson

__all__ = ["Learner", "Lesson"]
