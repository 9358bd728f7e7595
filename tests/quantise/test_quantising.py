"""Files in other types: matrices as planned and as encoded alone, the same after any stop, computed as they mean."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from weft.errors import InputError, NotFoundError, UnsupportedError
from weft.quantise import Quantising, encode, make_plan
from weft.runtime.checkpoint import open_checkpoint
from weft.runtime.decoder import Decoder
from weft.weights import TensorView, open_gguf, write_gguf

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))
import tiny
from tiny_gguf import gguf_from_config, gguf_tensors

CONFIG = {
    **tiny.CONFIGS["llama-grouped"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "tie_word_embeddings": False,
}
CONFIG.pop("head_dim", None)
TYPES = ["q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_k_s", "q4_0", "iq4_xs", "mxfp4", "q3_k_m", "q2_k", "bf16"]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("quantising") / "model.gguf"
    views = {key: TensorView.of(value) for key, value in tiny.weights(CONFIG).items()}
    write_gguf(path, gguf_tensors(CONFIG, views), gguf_from_config(CONFIG))
    return path


@pytest.mark.parametrize("kind", TYPES)
def test_a_file_has_the_blocks_of_its_plan(kind, source, tmp_path):
    before = open_gguf(source)
    output = tmp_path / "out.gguf"
    written = list(Quantising(source, output, type=kind, threads=2))
    after = open_gguf(output)
    plan = make_plan(before.tensors, kind)
    assert {name: view.dtype.name for name, view in after.tensors.items()} == plan.types
    assert [one.name for one in written] == list(before.tensors)
    for name, view in after.tensors.items():
        wanted = before[name] if view.dtype == before[name].dtype else encode(before[name].numpy(), view.dtype)
        assert np.array_equal(view.bytes(), wanted.bytes()), name
    kept = {key: value for key, value in before.metadata.stored().items() if key != "general.file_type"}
    assert {key: after.metadata.stored()[key] for key in kept} == kept
    said = json.loads((tmp_path / "out.gguf.json").read_text())
    assert said["type"] == kind and set(said["tensors"]) == set(before.tensors)
    matrix = next(one for one in written if one.name == "blk.1.ffn_up.weight")
    off = before[matrix.name].numpy().astype(np.float64)
    lost = ((off - after[matrix.name].numpy()) ** 2).sum() / (off**2).sum()
    assert matrix.lost == pytest.approx(lost, rel=1e-9) and said["tensors"][matrix.name]["lost"] == matrix.lost


@pytest.mark.parametrize("kind", ["q4_k_m", "q3_k_m", "mxfp4"])
def test_weft_computes_what_the_blocks_mean(kind, source, tmp_path):
    list(Quantising(source, tmp_path / "out.gguf", type=kind))
    made = open_gguf(tmp_path / "out.gguf")
    wide = {name: TensorView.of(view.numpy().astype(np.float32)) for name, view in made.tensors.items()}
    write_gguf(tmp_path / "wide.gguf", wide, open_gguf(source).metadata.stored())
    ids = tiny.token_ids(CONFIG, 20)
    paths = [tmp_path / name for name in ("out.gguf", "wide.gguf")]
    found, wanted = (Decoder(open_checkpoint(path), compute="f32", kv_dtype="f32").logits(ids) for path in paths)
    np.testing.assert_allclose(found, wanted, atol=2e-4 * np.abs(wanted).max())


def test_mixtures_give_what_matters_more_bits(source):
    tensors = open_gguf(source).tensors
    sizes = {kind: make_plan(tensors, kind).nbytes(tensors) for kind in TYPES}
    assert sizes["q2_k"] < sizes["q3_k_m"] < sizes["q4_k_s"] < sizes["q4_k_m"] < sizes["q5_k_m"] < sizes["q6_k"]
    types = make_plan(tensors, "q4_k_m").types
    assert types["output.weight"] == "q6_k" and types["token_embd.weight"] == "q4_k"
    assert types["blk.2.attn_v.weight"] == types["blk.2.ffn_down.weight"] == "q6_k"
    assert types["blk.2.attn_q.weight"] == "q4_k" and types["blk.0.attn_norm.weight"] == "f32"
    tied = {name: view for name, view in tensors.items() if name != "output.weight"}
    assert make_plan(tied, "q4_k_m").types["token_embd.weight"] == "q6_k", "an embedding that is the head too"
    narrow = {"blk.0.ffn_up.weight": TensorView.of(np.zeros((4, 96), np.float32))}
    assert make_plan(narrow, "q4_k_m").types == {"blk.0.ffn_up.weight": "q5_0"}
    odd = {"blk.0.ffn_up.weight": TensorView.of(np.zeros((4, 100), np.float32))}
    assert make_plan(odd, "q4_k_m").types == {"blk.0.ffn_up.weight": "f16"}
    excepted = make_plan(tensors, "q4_0", [("ffn_", "q8_0"), (r"blk\.1\.ffn_up", "bf16")]).types
    assert excepted["blk.0.ffn_up.weight"] == "q8_0" and excepted["blk.1.ffn_up.weight"] == "bf16"
    assert excepted["blk.0.attn_q.weight"] == "q4_0"


def test_a_stopped_run_goes_on_where_it_was(source, tmp_path, monkeypatch):
    whole, output = tmp_path / "whole.gguf", tmp_path / "out.gguf"
    list(Quantising(source, whole, type="q4_k_m"))
    count = 0

    def counting(*given, **more):
        nonlocal count
        count += 1
        return encode(*given, **more)

    monkeypatch.setattr("weft.quantise.writing.encode", counting)
    monkeypatch.setattr("weft.quantise.writing.NOTED_AFTER", 0)
    stops = 0
    while not output.exists():
        for number, _ in enumerate(Quantising(source, output, type="q4_k_m")):
            if number == 6 * (stops + 1):
                stops += 1
                break  # what kill -9 leaves: a journal, and a partial file whose last tensor may be half written
        if not output.exists() and stops == 2:
            with open(tmp_path / ".out.gguf.partial", "ab") as partial:
                partial.write(b"half of a tensor")
    assert stops > 2 and output.read_bytes() == whole.read_bytes()
    matrices = sum(one.before != one.after for one in Quantising(source, tmp_path / "again.gguf", type="q4_k_m"))
    assert count == 2 * matrices, "no tensor was encoded twice"
    assert not list(tmp_path.glob(".out*"))


def test_another_type_does_not_go_on_with_the_old_one(source, tmp_path):
    output = tmp_path / "out.gguf"
    iterator = iter(Quantising(source, output, type="q4_0"))
    [next(iterator) for _ in range(5)]
    iterator.close()
    list(Quantising(source, output, type="q5_0"))
    list(Quantising(source, tmp_path / "alone.gguf", type="q5_0"))
    assert output.read_bytes() == (tmp_path / "alone.gguf").read_bytes()


def test_importance_is_used_where_it_is_given(source, tmp_path):
    rng = np.random.default_rng(1)
    importance = {"blk.0.ffn_up.weight": np.exp(2 * rng.standard_normal(256))}
    list(Quantising(source, tmp_path / "out.gguf", type="q4_0", importance=importance))
    list(Quantising(source, tmp_path / "plain.gguf", type="q4_0"))
    made, plain, before = (open_gguf(path) for path in (tmp_path / "out.gguf", tmp_path / "plain.gguf", source))
    for name in before.tensors:
        assert np.array_equal(made[name].bytes(), plain[name].bytes()) == (name not in importance)
    ((name, weights),) = importance.items()
    values = before[name].numpy()
    errors = [(weights * (values - file[name].numpy()) ** 2).sum() for file in (made, plain)]
    assert errors[0] < errors[1]
    assert json.loads((tmp_path / "out.gguf.json").read_text())["importance"] == [name]


def test_bad_requests_are_refused(source, tmp_path):
    output = tmp_path / "out.gguf"
    for kind in ("q9", "q4_k", "iq2_xxs"):
        with pytest.raises(InputError, match="must be one of f32"):
            Quantising(source, output, type=kind)
    with pytest.raises(NotFoundError, match="has no config"):
        Quantising(tmp_path, output, type="q8_0")
    with pytest.raises(UnsupportedError, match="is no model"):
        Quantising(tmp_path / "model.bin", output, type="q8_0")
    for place, message in ((tmp_path / "out.bin", "end in .gguf"), (tmp_path / "a" / "b.gguf", "not a folder")):
        with pytest.raises(InputError, match=message):
            Quantising(source, place, type="q8_0")
    with pytest.raises(InputError, match="the model itself"):
        Quantising(source, source, type="q8_0", overwrite=True)
    for exceptions, message in (([("nothing", "q8_0")], "fits no matrix"), ([("(", "q8_0")], "regular expression")):
        with pytest.raises(InputError, match=message):
            Quantising(source, output, type="q4_0", exceptions=exceptions)
    with pytest.raises(InputError, match="iq1_s"):
        Quantising(source, output, type="q4_0", exceptions=[("ffn", "iq1_s")])
    output.write_bytes(b"mine")
    with pytest.raises(InputError, match="exists"):
        Quantising(source, output, type="q8_0")
    list(Quantising(source, output, type="q8_0", overwrite=True))
    assert open_gguf(output).tensors
