"""Networks of a few layers: built in a line, trained in seconds, kept in kilobytes.

from weft.tiny import Tiny
net = Tiny(784).relu(128).relu(64).softmax(10)
net.fit(images, digits)
net.predict(images)
"""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.tiny.compiled import Compiled as Compiled
    from weft.tiny.consolidation import Consolidation as Consolidation
    from weft.tiny.estimator import TinyClassifier as TinyClassifier
    from weft.tiny.layers import Layer as Layer
    from weft.tiny.network import Tiny as Tiny
    from weft.tiny.policy import Policy as Policy
    from weft.tiny.policy import Update as Update
    from weft.tiny.texts import TextClassifier as TextClassifier
    from weft.tiny.training import Epoch as Epoch
    from weft.tiny.training import Recipe as Recipe

_HOMES = {
    "Compiled": "compiled",
    "Consolidation": "consolidation",
    "Epoch": "training",
    "Layer": "layers",
    "Policy": "policy",
    "Recipe": "training",
    "TextClassifier": "texts",
    "Tiny": "network",
    "TinyClassifier": "estimator",
    "Update": "policy",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
