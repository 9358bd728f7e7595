"""Write csrc/quant/iq_grids.inc, the grids of GGUF's IQ types, from the tables of the `gguf` package.

    python tools/make_iq_grids.py

The grids are facts of the format. The package keeps them as hexadecimal text; here an entry becomes one 16-bit word of
indices into the type's list of levels (eight of 2 bits or four of 4 bits, lowest bits first).
"""

from pathlib import Path

import numpy as np
from gguf import quants

TARGET = Path(__file__).resolve().parent.parent / "csrc" / "quant" / "iq_grids.inc"

HEADER = """\
// iq_grids: the grids of the IQ1, IQ2 and IQ3 types; one 16-bit word an entry. Written by tools/make_iq_grids.py.
#pragma once
#include <cstdint>

namespace weft {
"""

GRIDS = {"IQ2XXS": "IQ2_XXS", "IQ2XS": "IQ2_XS", "IQ2S": "IQ2_S", "IQ3XXS": "IQ3_XXS", "IQ3S": "IQ3_S", "IQ1": "IQ1_S"}


def words(name: str) -> np.ndarray:
    """The entries of grid `name` as 16-bit words [entries]."""
    quant = getattr(quants, name)
    quant.init_grid()
    entries, width = quant.grid_shape
    levels = np.asarray(quant.grid_map, np.float32)
    index = (quant.grid.reshape(entries, width, 1) == levels).argmax(axis=-1).astype(np.uint16)
    return np.bitwise_or.reduce(index << np.arange(0, 16, 16 // width, dtype=np.uint16), axis=-1)


def table(name: str, values: np.ndarray) -> str:
    rows = [", ".join(f"{v:#06x}" for v in values[i : i + 14]) for i in range(0, len(values), 14)]
    body = ",\n    ".join(rows)
    return f"\ninline constexpr uint16_t kGrid{name}[{len(values)}] = {{\n    {body}}};\n"


def main() -> None:
    tables = "".join(table(name, words(source)) for name, source in GRIDS.items())
    TARGET.write_text(HEADER + tables + "\n}  // namespace weft\n", encoding="utf-8")


if __name__ == "__main__":
    main()
