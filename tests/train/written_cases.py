"""Adapters as weft writes them, for a tiny model of every decoder: what is trained comes from a seed, so that a golden
needs only what peft computes with the folders."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import gradient_cases
import tiny

from weft.graph.passes.learn import LowRank
from weft.runtime import open_checkpoint
from weft.train import Learner, Options, Run
from weft.train.targets import changes_of, choose, products, whole_modules

TOKENS = 11
FIRST = {tiny.CONFIGS[name]["model_type"]: name for name in reversed(gradient_cases.DECODERS)}
# name -> config, options
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (name, {"rank": 3, "alpha": 5.0}) for kind, name in FIRST.items()},
    "llama-one-layer": ("llama-grouped", {"targets": r".*layers\.1\..*_proj", "rank": 2, "alpha": 1.0}),
    "llama-two-modules": ("llama-grouped", {"targets": "q_proj,down_proj", "dropout": 0.1}),
    "qwen2-whole": ("qwen2", {"modules_to_save": ["embed_tokens", "layers.1.self_attn.k_proj"], "rank": 2}),
    "qwen3-rslora": ("qwen3", {"rank": 5, "alpha": 4.0, "rslora": True}),
    "phi3-rslora": ("phi3", {"rank": 5, "alpha": 4.0, "rslora": True}),
    **{f"{name}+experts": (name, {"targets": "experts", "rank": 2, "alpha": 3.0}) for name in gradient_cases.MIXTURES},
    "qwen3_moe+all": ("qwen3_moe", {"targets": "all-linear,experts", "rank": 3, "rslora": True}),
    "qwen3_moe+down": ("qwen3_moe", {"targets": r".*layers\.1\.mlp\.experts\.down_proj", "rank": 2}),
}


def write(folder: Path, name: str) -> tuple[Path, Path]:
    """The folders of the base and of the adapter."""
    cfg, options = tiny.CONFIGS[CASES[name][0]], Options(**CASES[name][1])
    base = tiny.write_folder(folder / "base", cfg)
    checkpoint = open_checkpoint(base)
    weights = products(checkpoint)
    modules = choose(weights, options.targets, model_type=checkpoint.model_type)
    whole = whole_modules(checkpoint, options.modules_to_save)
    adapted = [one for one in modules if one not in whole]
    changes = changes_of(weights, adapted, LowRank(options.rank, options.scale), checkpoint.model_type)
    learner = Learner(
        checkpoint, changes, weights=[name for names in whole.values() for name in names], backend="reference"
    )
    run = Run(learner, gradient_cases.lessons(cfg), options, start=gradient_cases.parameters(learner.shapes))
    run.save(folder / "adapter", base="tiny", weights=weights)
    return base, folder / "adapter"


def digest(adapter: Path) -> str:
    """A hash of both files of an adapter."""
    return sha256(b"".join(path.read_bytes() for path in sorted(adapter.iterdir()))).hexdigest()
