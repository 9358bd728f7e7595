"""Models in fewer bits, and what that loses.

list(weft.quantise.Quantising("model-f16.gguf", "model-q4.gguf", type="q4_k_m"))
weft.quantise.encode(rows, "q4_k", importance=...)     # a TensorView, .numpy() is what the blocks mean
"""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.quantise.calibration import Calibration as Calibration
    from weft.quantise.choosing import choose_plan as choose_plan
    from weft.quantise.encoding import encode as encode
    from weft.quantise.encoding import feedback_factor as feedback_factor
    from weft.quantise.folder import QuantisingFolder as QuantisingFolder
    from weft.quantise.imatrix import read_imatrix as read_imatrix
    from weft.quantise.imatrix import write_imatrix as write_imatrix
    from weft.quantise.plan import Plan as Plan
    from weft.quantise.plan import make_plan as make_plan
    from weft.quantise.writing import Quantising as Quantising
    from weft.quantise.writing import Written as Written

_HOMES = {
    "Calibration": "calibration",
    "Plan": "plan",
    "Quantising": "writing",
    "QuantisingFolder": "folder",
    "Written": "writing",
    "choose_plan": "choosing",
    "encode": "encoding",
    "feedback_factor": "encoding",
    "make_plan": "plan",
    "read_imatrix": "imatrix",
    "write_imatrix": "imatrix",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
