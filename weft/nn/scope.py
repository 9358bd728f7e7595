"""The weight scope: a place in the checkpoint's tree of names. `w / "q_proj"` goes down; using a weight declares it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from weft.dtype import DType, dtype

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.graph.trace import Trace
    from weft.ops.spec import Size


# In a weight's name: the stored tensor plus one, or minus its exponential. A file may hold it in that form already.
PLUS_ONE = ":plus1"
MINUS_EXP = ":-exp"
COLUMNS = ":in"  # then first-end/total: these columns of a stored matrix
TRANSPOSED = ":T"  # the stored matrix, transposed; the rows of a part are counted after that
# In the name of a stack of matrices, in place of a number: experts.each.up_proj.weight has those of all experts.
# After the rows of a part: these rows of each matrix of a stored stack.
EACH = "each"

Part = tuple[int, int] | tuple[int, int, int]


class Scope:
    """Names below `path`. `stored` gives a tensor's type in the checkpoint, None where it has no such tensor."""

    def __init__(self, trace: Trace, stored: Callable[[str], DType | None], path: str = "") -> None:
        self._trace = trace
        self._stored = stored
        self.path = path

    def __truediv__(self, name: str | int) -> Scope:
        return Scope(self._trace, self._stored, f"{self.path}.{name}" if self.path else str(name))

    def __contains__(self, name: str) -> bool:
        return self._stored((self / name).path) is not None

    def root(self) -> Scope:
        """All names, for a model that has whole ones."""
        return Scope(self._trace, self._stored)

    def weight(
        self,
        name: str,
        *shape: Size,
        part: Part | None = None,
        plus_one: bool = False,
        minus_exp: bool = False,
        transposed: bool = False,
        columns: tuple[int, int] | None = None,
    ) -> Tensor:
        """The tensor `name` of this scope. Vectors are read as f32; matrices keep the checkpoint's element type.

        `part` (first, total) selects the rows from `first` on of a stored tensor of `total` rows, and becomes part of
        the name: qkv_proj.weight:96-128/160. With a third number, a period, it selects such rows in every period, as
        many as there are: q_proj.weight:0-8/16/96 has the first 8 rows of every 16. Of a stack of matrices, [E, rows,
        cols], a part has rows of each matrix: gate_up_proj:0-8/16:each. `plus_one` adds one to a stored vector
        (norm.weight:plus1), `minus_exp` is minus the exponential of one. `transposed`: the file has the matrix as
        [inputs, outputs] (c_attn.weight:T). `columns` (first, total) selects the columns from `first` on of a stored
        matrix of `total` columns (fc.weight:in64-128/128).
        """
        full = (self / name).path + (TRANSPOSED if transposed else "")
        if columns is not None:
            full += f"{COLUMNS}{columns[0]}-{columns[0] + cast(int, shape[1])}/{columns[1]}"
        if part is not None:
            first, total, *period = part
            stacked = len(shape) == 3 and shape[1] != 1  # and not the taps of a convolution
            rows = cast(int, shape[1 if stacked else 0])  # a weight's sizes are numbers
            every = f"/{period[0]}" if period else ""
            full = f"{full}:{first}-{first + (rows * period[0] // total if period else rows)}{every}/{total}" + (
                f":{EACH}" if stacked else ""
            )
        if plus_one or minus_exp:
            full += PLUS_ONE if plus_one else MINUS_EXP
        stored = self._stored(full)
        kind = stored if stored is not None and len(shape) > 1 else dtype("f32")
        return self._trace.weight(full, shape, kind)
