"""Plans for a size or a loss: within it, better than one type for all, the same every time."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner

from weft.cli.app import app
from weft.dtype import DTYPES
from weft.errors import InputError
from weft.quantise import Quantising, choose_plan
from weft.quantise.choosing import LADDER, _hull, ladder
from weft.weights import TensorView, open_gguf, quantise, write_gguf


@pytest.fixture(scope="module")
def tensors() -> dict[str, TensorView]:
    rng = np.random.default_rng(8)
    made: dict[str, TensorView] = {"output_norm.weight": TensorView.of(np.ones(256, np.float32))}
    for layer in range(2):
        for name, rows in (("attn_q", 64), ("attn_v", 32), ("ffn_up", 128)):
            values = rng.standard_normal((rows, 256)) * np.exp(0.8 * layer * rng.standard_normal((rows, 256)))
            made[f"blk.{layer}.{name}.weight"] = TensorView.of(values.astype(np.float32))
    made["blk.0.odd.weight"] = TensorView.of(rng.standard_normal((8, 96)).astype(np.float32))
    return made


def lost(tensors, types) -> float:
    parts = []
    for name, kind in types.items():
        if len(tensors[name].shape) > 1:
            steps = {step.type: step.lost for step in _all_steps(tensors[name])}
            parts.append(steps[kind])
    return float(np.mean(parts))


def _all_steps(view):
    from weft.quantise import choosing

    kept, choosing._hull = choosing._hull, list
    try:
        return choosing.ladder(view, None)
    finally:
        choosing._hull = kept


def test_a_ladder_falls_and_each_step_wins_less(tensors):
    steps = ladder(tensors["blk.1.ffn_up.weight"], None)
    assert len(steps) > 4 and steps[-1].type == "f16"
    gains = [(a.lost - b.lost) / (b.nbytes - a.nbytes) for a, b in pairwise(steps)]
    assert all(gain > 0 for gain in gains) and gains == sorted(gains, reverse=True)
    assert {step.type for step in ladder(tensors["blk.0.odd.weight"], None)} <= {
        kind for kind in LADDER if DTYPES[kind].block in (1, 32)
    }
    assert _hull(steps) == steps


def test_a_size_is_kept_and_used_better_than_by_one_type(tensors):
    for kind in ("q3_k", "q5_k"):
        even = {name: "f32" if len(view.shape) < 2 else kind for name, view in tensors.items()}
        even["blk.0.odd.weight"] = "q5_0"
        size = sum(DTYPES[kind].nbytes(tensors[name].size) for name, kind in even.items())
        plan = choose_plan(tensors, size=size)
        assert size * 0.95 < plan.nbytes(tensors) <= size and plan.types["output_norm.weight"] == "f32"
        assert lost(tensors, plan.types) <= lost(tensors, even)
        assert choose_plan(tensors, size=size, threads=3).types == plan.types
    sizes = [choose_plan(tensors, max_loss=part).nbytes(tensors) for part in (0.05, 0.01, 0.001)]
    assert sizes == sorted(sizes) and len(set(sizes)) == 3
    assert lost(tensors, choose_plan(tensors, max_loss=0.01).types) <= 0.01
    narrow = {**tensors, "blk.1.ffn_up.weight": quantise(tensors["blk.1.ffn_up.weight"].numpy(), "q8_0")}
    plan = choose_plan(narrow, size=50_000)
    assert plan.nbytes(narrow) <= 50_000 and plan.types["blk.1.ffn_up.weight"] not in ("f16", "q8_0")


def test_a_file_has_the_types_of_its_plan(tensors, tmp_path):
    write_gguf(tmp_path / "m.gguf", tensors, {"general.architecture": "llama"})
    plan = choose_plan(open_gguf(tmp_path / "m.gguf").tensors, size=50_000)
    list(Quantising(tmp_path / "m.gguf", tmp_path / "o.gguf", type=plan))
    assert {name: view.dtype.name for name, view in open_gguf(tmp_path / "o.gguf").tensors.items()} == plan.types
    arguments = [str(tmp_path / "m.gguf"), "-o", str(tmp_path / "c.gguf"), "--size", "50kB", "--json"]
    result = CliRunner().invoke(app, ["quantize", *arguments])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "c.gguf").read_bytes() == (tmp_path / "o.gguf").read_bytes()
    said = json.loads((tmp_path / "o.gguf.json").read_text())
    assert said["type"] == "auto" and {name: one["to"] for name, one in said["tensors"].items()} == plan.types


def test_what_cannot_be_is_refused(tensors, tmp_path):
    with pytest.raises(InputError, match="smallest types need"):
        choose_plan(tensors, size=1000)
    for given in ({}, {"size": 1, "max_loss": 1.0}):
        with pytest.raises(InputError, match="not both"):
            choose_plan(tensors, **given)
    for part, message in ((-1.0, "above 0"), (1e-30, "f16 loses")):
        with pytest.raises(InputError, match=message):
            choose_plan(tensors, max_loss=part)
    with pytest.raises(InputError, match="no matrix"):
        choose_plan({"a.weight": TensorView.of(np.ones(4, np.float32))}, size=1000)
    write_gguf(tmp_path / "m.gguf", tensors, {"general.architecture": "llama"})
    plan = choose_plan(tensors, max_loss=0.01)
    with pytest.raises(InputError, match="of this model"):
        Quantising(tmp_path / "m.gguf", tmp_path / "o.gguf", type=plan, exceptions=[("a", "q8_0")])
