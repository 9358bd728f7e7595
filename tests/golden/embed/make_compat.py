"""Make compat.npz: what sentence-transformers' encode and util compute, for tests/embed/test_compat_functions.py.

PYTHONPATH=. python tests/golden/embed/make_compat.py       (needs sentence-transformers and the built package)
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import sentence_transformers
from sentence_transformers import util
from sentence_transformers.util import quantize_embeddings

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "models")]
from made_with import note_versions  # noqa: E402
from tiny_rerank import write_cross  # noqa: E402
from tiny_st import TEXTS, write_st_folder  # noqa: E402

SPECIAL = ["[CLS] hello [SEP]", "the cat [SEP] sat", "[MASK]", "a [UNK] b [PAD]", "[sep] [Sep]"]
LENGTH = 10  # of shortened vectors
SPECIAL_PAIRS = [("the cat [SEP] sat", "a [MASK]"), ("[CLS] one", "one two three")]
ALL = ("cos_sim", "dot_score", "euclidean_sim", "manhattan_sim")
PAIRWISE = (*(f"pairwise_{name}" for name in ALL), "pairwise_angle_sim")


def groups(rng: np.random.Generator) -> np.ndarray:
    """60 vectors [60, 8] around five centres, in random order, and 20 that are near none."""
    centres = np.repeat(rng.standard_normal((5, 8)), [20, 14, 12, 9, 5], axis=0)
    near = centres + 0.1 * rng.standard_normal(centres.shape)
    return rng.permutation(np.concatenate([near, rng.standard_normal((20, 8))])).astype(np.float32)


def listed(found: object) -> np.ndarray:
    return np.array(json.dumps(found))


rng = np.random.default_rng(7)
a, b, many = (rng.standard_normal(shape).astype(np.float32) for shape in ((7, 13), (5, 13), (150, 16)))
crowd = groups(rng)
arrays: dict[str, np.ndarray] = {"a": a, "b": b, "many": many, "crowd": crowd}
arrays["ranges"] = np.stack([np.full(16, -1.5, np.float32), np.full(16, 2.0, np.float32)])
for name in ALL:
    arrays[name] = getattr(util, name)(a, b).numpy()
for name in PAIRWISE:
    arrays[name] = getattr(util, name)(a[:5], b).numpy()
for precision in ("float32", "int8", "uint8", "binary", "ubinary"):
    arrays[f"many/{precision}"] = quantize_embeddings(many, precision)
arrays["int8 by ranges"] = quantize_embeddings(many, "int8", ranges=arrays["ranges"])
arrays["uint8 by calibration"] = quantize_embeddings(many, "uint8", calibration_embeddings=many[:40])
arrays["normalised"] = util.normalize_embeddings(sentence_transformers.util._convert_to_tensor(a)).numpy()
arrays["search"] = listed(util.semantic_search(a, many[:, :13], top_k=4))
arrays["search by dot in chunks"] = listed(
    util.semantic_search(a, many[:, :13], 2, 40, top_k=3, score_function=util.dot_score)
)
tensor = sentence_transformers.util._convert_to_tensor(crowd)
arrays["pairs"] = listed(util.paraphrase_mining_embeddings(tensor, top_k=3))
arrays["few pairs in chunks"] = listed(util.paraphrase_mining_embeddings(tensor, 16, 30, max_pairs=50, top_k=3))
arrays["communities"] = listed(util.community_detection(crowd, threshold=0.9, min_community_size=5, batch_size=32))
arrays["large communities"] = listed(util.community_detection(crowd, threshold=0.85, min_community_size=10))

with tempfile.TemporaryDirectory() as scratch:
    model = sentence_transformers.SentenceTransformer(str(write_st_folder(Path(scratch) / "model")), device="cpu")
    arrays["special"] = np.stack([model.encode([text])[0] for text in SPECIAL])
    arrays["special after a prompt"] = np.stack([model.encode([text], prompt="query: ")[0] for text in SPECIAL])
    arrays["short"] = model.encode(TEXTS, truncate_dim=LENGTH)
    arrays["short and normalised"] = model.encode(TEXTS, truncate_dim=LENGTH, normalize_embeddings=True)
    arrays["longer than it is"] = model.encode(TEXTS, truncate_dim=1000)
    arrays["nothing"] = model.encode([])
    arrays["nothing in int8"] = model.encode([], precision="int8")
    arrays["paraphrases"] = listed(util.paraphrase_mining(model, TEXTS))
    ranker = sentence_transformers.CrossEncoder(str(write_cross(Path(scratch) / "cross", "bert")), device="cpu")
    arrays["special pairs"] = np.stack([ranker.predict([pair])[0] for pair in SPECIAL_PAIRS])

np.savez_compressed(HERE / "compat.npz", **arrays)
note_versions(HERE / "compat.npz", "sentence-transformers", "transformers", "torch", "numpy")
print({k: v.shape for k, v in arrays.items()})
