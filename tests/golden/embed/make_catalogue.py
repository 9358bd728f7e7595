"""Make tiny-catalogue.npz: what sentence-transformers computes for the folders of tests/models/tiny_catalogue.py.

PYTHONPATH=. python tests/golden/embed/make_catalogue.py       (needs sentence-transformers and the built package)
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import sentence_transformers

from weft.weights.sources import catalog

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "models")]
from made_with import note_versions  # noqa: E402
from tiny_catalogue import CATALOGUE, OTHERS, TEXTS, write_layout  # noqa: E402


def prompts(name: str) -> dict[str, str]:
    """Role -> what is put before a text: the catalogue's word, else the folder's."""
    entry = catalog.find(name)
    if entry is None:
        return {role: text for role, text in OTHERS[name].prompts.items() if text}
    given = {"query": entry.query_prefix or "", "document": entry.document_prefix or ""}
    return {role: text for role, text in given.items() if text}


def main() -> None:
    arrays = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, layout in {**CATALOGUE, **OTHERS}.items():
            folder = write_layout(Path(scratch) / name, layout)
            model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
            for role, prompt in {"plain": None, **prompts(name)}.items():
                # one text at a time: what a padded batch changes in the last bits is not the model's meaning
                made = [model.encode([text], prompt=prompt)[0] for text in TEXTS]
                arrays[f"{name}/{role}"] = np.stack(made).astype(np.float32)
    np.savez_compressed(HERE / "tiny-catalogue.npz", **arrays)
    note_versions(HERE / "tiny-catalogue.npz", "sentence-transformers", "transformers", "torch", "numpy")
    print({key: value.shape for key, value in arrays.items()})


main()
