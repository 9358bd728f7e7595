"""Make tiny-mpnet.npz: what sentence-transformers and transformers' tokenizer make of the folder of
tests/models/tiny_mpnet.py, with either kind of tokenizer file.

PYTHONPATH=. python tests/golden/embed/make_mpnet.py       (needs sentence-transformers and the built package)
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import sentence_transformers
import transformers

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "models")]
from made_with import note_versions  # noqa: E402
from tiny_mpnet import FILES, PAIRS, TEXTS, write_mpnet_folder  # noqa: E402

arrays = {}
with tempfile.TemporaryDirectory() as scratch:
    for file in FILES:
        folder = str(write_mpnet_folder(Path(scratch) / file, file))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        assert type(tokenizer).__name__ == "MPNetTokenizer", type(tokenizer)
        ids = [tokenizer(text)["input_ids"] for text in TEXTS]
        pairs = [tokenizer(*pair)["input_ids"] for pair in PAIRS]
        arrays[f"{file}/ids"] = np.array(json.dumps([ids, pairs]))
        model = sentence_transformers.SentenceTransformer(folder, device="cpu")
        arrays[f"{file}/vectors"] = np.stack([model.encode([text])[0] for text in TEXTS]).astype(np.float32)
np.savez_compressed(HERE / "tiny-mpnet.npz", **arrays)
note_versions(HERE / "tiny-mpnet.npz", "sentence-transformers", "transformers", "torch", "numpy")
print({key: value.shape for key, value in arrays.items()})
