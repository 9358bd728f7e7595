"""Learning from a teacher: labels from a larger model, paid once, and students that learn from them."""

from weft.distill.asking import Limits
from weft.distill.labelling import Labelled, Labelling, Plan, label
from weft.distill.prices import Price
from weft.distill.rows import Prompting
from weft.distill.training import train

__all__ = ["Labelled", "Labelling", "Limits", "Plan", "Price", "Prompting", "label", "train"]
