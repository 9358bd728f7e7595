"""Make written-vectors.npz: the vectors that sentence-transformers and peft compute with the folders that weft writes
after training (tests/train/written_vectors.py), and the hash of the adapter.

PYTHONPATH=. python tests/golden/train/make_written_vectors.py    (needs sentence-transformers and peft)
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import peft
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), *(str(HERE.parents[1] / part) for part in ("train", "models")), str(HERE.parents[2])]
import written_vectors  # noqa: E402
from made_with import note_versions  # noqa: E402


def vectors(model: SentenceTransformer) -> np.ndarray:
    return np.stack([model.encode([text], prompt="")[0] for text in written_vectors.TEXTS])


with tempfile.TemporaryDirectory() as scratch:
    folders = written_vectors.write(Path(scratch))
    arrays = {
        name: vectors(SentenceTransformer(str(folders[name]), device="cpu")) for name in ("base", "merged", "full")
    }
    model = SentenceTransformer(str(folders["base"]), device="cpu")
    model[0].model = peft.PeftModel.from_pretrained(model[0].model, folders["adapter"]).eval()
    model[0].model.save_pretrained(Path(scratch) / "saved")
    given, saved = (
        load_file(path / "adapter_model.safetensors") for path in (folders["adapter"], Path(scratch) / "saved")
    )
    assert not given.keys() - saved.keys(), sorted(given.keys() - saved.keys())
    arrays["adapter"] = vectors(model)
    for name, found in arrays.items():
        print(name, found.shape, "apart from the base:", np.abs(found - arrays["base"]).max())
    assert np.abs(arrays["adapter"] - arrays["merged"]).max() < 1e-5
    arrays["digest of the adapter"] = np.asarray(written_vectors.digest(folders["adapter"]))
    np.savez_compressed(HERE / "written-vectors.npz", **arrays)
note_versions(HERE / "written-vectors.npz", "peft", "sentence-transformers", "transformers", "torch", "numpy")
