"""Make tiny-odd.npz: what sentence-transformers computes for the folders of tests/models/tiny_odd.py.

PYTHONPATH=. python tests/golden/embed/make_odd.py       (needs sentence-transformers and the built package)
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import sentence_transformers

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "models"))
from tiny_odd import FOLDERS, TEXTS  # noqa: E402

arrays = {}
with tempfile.TemporaryDirectory() as scratch:
    for name, write in FOLDERS.items():
        model = sentence_transformers.SentenceTransformer(str(write(Path(scratch) / name)), device="cpu")
        arrays[name] = np.stack([model.encode([text])[0] for text in TEXTS]).astype(np.float32)
np.savez_compressed(HERE / "tiny-odd.npz", **arrays)
print(sentence_transformers.__version__, {key: value.shape for key, value in arrays.items()})
