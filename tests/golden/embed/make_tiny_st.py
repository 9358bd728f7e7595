"""Make tiny-st.npz: what sentence-transformers computes for the folder of tests/models/tiny_st.py.

PYTHONPATH=. python tests/golden/embed/make_tiny_st.py       (needs sentence-transformers and the built package)
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import sentence_transformers

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "models")]
from made_with import note_versions  # noqa: E402
from tiny_st import TEXTS, write_st_folder  # noqa: E402

with tempfile.TemporaryDirectory() as scratch:
    model = sentence_transformers.SentenceTransformer(str(write_st_folder(Path(scratch) / "model")), device="cpu")
    arrays = {
        "plain": np.stack([model.encode([text])[0] for text in TEXTS]),
        "query": np.stack([model.encode_query([text])[0] for text in TEXTS]),
        "document": np.stack([model.encode_document([text])[0] for text in TEXTS]),
    }
    np.savez_compressed(HERE / "tiny-st.npz", **arrays)
    note_versions(HERE / "tiny-st.npz", "sentence-transformers", "transformers", "torch", "numpy")
    print({k: v.shape for k, v in arrays.items()})
