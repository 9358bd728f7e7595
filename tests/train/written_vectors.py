"""What weft writes of a tiny embedder and a tiny reranker: an adapter, the model with it merged, and a model trained in
full. What is trained comes from a seed, so that a golden needs only what other libraries compute with the folders."""

from hashlib import sha256
from pathlib import Path

import gradient_cases
from tiny_st import write_st_folder

from weft import train

TEXTS = ["the cat sat", "a", "Hello, WORLD! 123", "the quick brown fox jumps over the lazy dog", "one two three"]
PAIRS = [{"anchor": "the cat", "positive": "a cat"}, {"anchor": "one two", "positive": "two one"}]


def write(folder: Path) -> dict[str, Path]:
    """The folders: `base`, `adapter`, `merged` and `full`."""
    base = write_st_folder(folder / "base")
    for name, rank in (("adapter", 3), ("full", 0)):
        training = train.embedder(base, PAIRS, output=folder / name, rank=rank, merged=bool(rank), alpha=5.0, threads=1)
        changes = gradient_cases.parameters(training.learner.shapes)
        start = training.learner.start
        training.run.parameters = {
            key: start[key] + 0.1 * value if key in start else value for key, value in changes.items()
        }
        training.write()
    return {
        "base": base,
        "adapter": folder / "adapter",
        "merged": folder / "adapter" / "merged",
        "full": folder / "full",
    }


def digest(adapter: Path) -> str:
    """A hash of an adapter's matrices."""
    return sha256((adapter / "adapter_model.safetensors").read_bytes()).hexdigest()
