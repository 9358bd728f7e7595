"""Make minilm.npz: what sentence-transformers computes in float32 for the texts of embed_texts.py.

python tests/golden/embed/make_minilm.py FOLDER     (the model's folder; needs sentence-transformers)
"""

import sys
from pathlib import Path

import numpy as np
import sentence_transformers
from embed_texts import texts

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from made_with import note_versions  # noqa: E402


def main() -> None:
    model = sentence_transformers.SentenceTransformer(sys.argv[1], device="cpu")
    # one text at a time: what a padded batch changes in the last bits is not the model's meaning
    vectors = np.stack([model.encode([text])[0] for text in texts()]).astype(np.float32)
    np.savez_compressed(HERE / "minilm.npz", vectors=vectors)
    note_versions(HERE / "minilm.npz", "sentence-transformers", "transformers", "torch", "numpy")
    print(vectors.shape)


main()
