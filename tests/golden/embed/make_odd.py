"""Make tiny-odd.npz: what sentence-transformers computes for the folders of tests/models/tiny_odd.py.

PYTHONPATH=. python tests/golden/embed/make_odd.py       (needs sentence-transformers and the built package)
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import sentence_transformers

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "models")]
from made_with import note_versions  # noqa: E402
from tiny_odd import FOLDERS, TEXTS  # noqa: E402

arrays = {}
with tempfile.TemporaryDirectory() as scratch:
    for name, write in FOLDERS.items():
        model = sentence_transformers.SentenceTransformer(str(write(Path(scratch) / name)), device="cpu")
        arrays[name] = np.stack([model.encode([text])[0] for text in TEXTS]).astype(np.float32)
np.savez_compressed(HERE / "tiny-odd.npz", **arrays)
note_versions(HERE / "tiny-odd.npz", "sentence-transformers", "transformers", "torch", "numpy")
print({key: value.shape for key, value in arrays.items()})
