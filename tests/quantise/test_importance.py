"""Importance of columns beside numpy; llama.cpp's files of it, both forms; what quantising loses with it."""

from __future__ import annotations

import importlib.util
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from weft.errors import FormatError, InputError
from weft.quantise import Calibration, Quantising, read_imatrix, write_imatrix
from weft.quantise.imatrix import fitting
from weft.runtime import Decoder, open_checkpoint
from weft.weights import open_gguf, write_gguf

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "models"))
_spec = importlib.util.spec_from_file_location("make_folders", TESTS / "golden" / "quantise" / "make_folders.py")
assert _spec and _spec.loader
maker = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(maker)
TEXT = "\n".join(maker.TEXTS * 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("importance") / "model"
    maker.write_folder(path, "qwen3")
    return path


def test_the_first_and_the_last_matrix_see_what_numpy_computes(folder):
    work = Calibration(folder, TEXT, window=64)
    seen = work.importance()
    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    tensors = {name: one.numpy().astype(np.float64) for name, one in checkpoint.tensors.items()}
    first, last = [], []
    for ids in work.windows:
        x = tensors["model.embed_tokens.weight"][ids]
        x /= np.sqrt((x**2).mean(1, keepdims=True) + config["rms_norm_eps"])
        first.append(x * tensors["model.layers.0.input_layernorm.weight"])
        logits = Decoder(checkpoint, compute="f32", kv_dtype="f32").logits(ids, chunk=len(ids)).astype(np.float64)
        last.append(np.linalg.lstsq(tensors["lm_head.weight"], logits.T, rcond=None)[0].T)
    assert len(work.windows) > 1
    for name, rows in (("blk.0.attn_q.weight", first), ("blk.0.attn_v.weight", first), ("output.weight", last)):
        rows = np.concatenate(rows)
        assert seen[name].counts.tolist() == [len(rows)]
        np.testing.assert_allclose(seen[name].mean, (rows**2).mean(0), rtol=1e-4)
    moments = work.moments(["blk.0.attn_q.weight", "blk.0.ffn_down.weight"], memory=1)
    assert list(moments) == ["blk.0.attn_q.weight"], "no more than fits"
    rows = np.concatenate(first)
    np.testing.assert_allclose(moments["blk.0.attn_q.weight"], rows.T @ rows / len(rows), atol=1e-4)


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "mixtral", "lfm2", "phi3"])
def test_the_core_sees_what_the_reference_sees(name, tmp_path):
    maker.write_folder(tmp_path / "model", name)
    list(Quantising(tmp_path / "model", tmp_path / "model.gguf", type="f32"))
    found = Calibration(tmp_path / "model.gguf", TEXT, tokens=64).importance()
    wanted = Calibration(tmp_path / "model", TEXT, tokens=64, backend="reference").importance()
    assert found.keys() == wanted.keys() <= open_gguf(tmp_path / "model.gguf").tensors.keys()
    for key, one in wanted.items():
        assert one.counts.tolist() == found[key].counts.tolist()
        np.testing.assert_allclose(found[key].mean, one.mean, rtol=1e-3, atol=1e-6, err_msg=key)
    if name == "mixtral":
        stack = found["blk.0.ffn_up_exps.weight"]
        assert len(stack.counts) > 1 and stack.counts.sum() == 64 * 2 and stack.mean.ndim == 2


def test_both_forms_of_files_come_back(folder, tmp_path):
    seen = Calibration(folder, TEXT, window=64).importance()
    for name in ("m.gguf", "m.dat"):
        write_imatrix(tmp_path / name, seen, text="some.txt", windows=3, window=64)
        back = read_imatrix(tmp_path / name)
        assert back.keys() == seen.keys()
        for key, one in seen.items():
            np.testing.assert_allclose(back[key].mean, one.mean, rtol=1e-6)
        assert fitting(back, folder).keys() == seen.keys()
    metadata = open_gguf(tmp_path / "m.gguf").metadata
    assert metadata.get_str("general.type") == "imatrix" and metadata.get_int("imatrix.chunk_count") == 3
    assert list(metadata.get_array("imatrix.datasets", "str")) == ["some.txt"]


def test_files_as_llama_cpp_writes_them(tmp_path):
    """Its layout, by hand: docs of llama.cpp's tools/imatrix."""
    values = np.arange(1, 7, dtype="<f4")
    entry = struct.pack("<i", 19) + b"blk.0.attn_q.weight" + struct.pack("<2i", 2, 6) + values.tobytes()
    (tmp_path / "a.dat").write_bytes(struct.pack("<i", 1) + entry + struct.pack("<2i", 2, 3) + b"abc")
    np.testing.assert_allclose(read_imatrix(tmp_path / "a.dat")["blk.0.attn_q.weight"].mean, values / 2)
    tensors = {
        "blk.0.ffn_up_exps.weight.in_sum2": np.arange(6, dtype=np.float32).reshape(2, 3),
        "blk.0.ffn_up_exps.weight.counts": np.float32([[2], [0]]),
    }
    more = {"general.type": "imatrix", "imatrix.datasets": ["a"], "imatrix.chunk_count": 2, "imatrix.chunk_size": 512}
    write_gguf(tmp_path / "a.gguf", tensors, more)
    mean = read_imatrix(tmp_path / "a.gguf")["blk.0.ffn_up_exps.weight"].mean
    assert mean.tolist() == [[0, 0.5, 1], [1, 1, 1]], "an expert that saw nothing has ones"


def test_files_that_are_not_such_are_refused(folder, tmp_path):
    whole = struct.pack("<2i", 1, 1) + b"a" + struct.pack("<2i", 1, 2) + bytes(8)
    for content in (b"", b"abc", struct.pack("<i", -1), whole[:-1], struct.pack("<2i", 1, 1 << 30)):
        (tmp_path / "bad.dat").write_bytes(content)
        with pytest.raises(FormatError):
            read_imatrix(tmp_path / "bad.dat")
    (tmp_path / "ok.dat").write_bytes(whole)
    with pytest.raises(InputError, match="another model"):
        fitting(read_imatrix(tmp_path / "ok.dat"), folder)
    list(Quantising(folder, tmp_path / "model.gguf", type="f32"))
    with pytest.raises(FormatError, match="imatrix"):
        read_imatrix(tmp_path / "model.gguf")
    with pytest.raises(InputError, match="another model"):
        Quantising(folder, tmp_path / "o.gguf", type="q4_0", importance={"blk.0.attn_q.weight": np.ones(3)})
    with pytest.raises(InputError, match="two tokens"):
        Calibration(folder, "")


def test_less_is_lost_where_it_matters(tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}
    maker.write_folder(tmp_path / "model", "mixtral", **sizes)
    means = {key: one.mean for key, one in Calibration(tmp_path / "model", TEXT).importance().items()}
    rng = np.random.default_rng(5)
    means = {key: mean * np.exp(2 * rng.standard_normal(mean.shape)) for key, mean in means.items()}
    plain, weighted = tmp_path / "plain.gguf", tmp_path / "weighted.gguf"
    list(Quantising(tmp_path / "model", plain, type="q4_0"))
    list(Quantising(tmp_path / "model", weighted, type="q4_0", importance=means))
    list(Quantising(tmp_path / "model", tmp_path / "f32.gguf", type="f32"))
    wide, *made = (open_gguf(path).tensors for path in (tmp_path / "f32.gguf", plain, weighted))
    changed = [key for key in means if made[0][key].dtype.quantised]
    for key in changed:
        weights = means[key] if means[key].ndim == 1 else means[key][:, None]
        lost = [(weights * (wide[key].numpy() - file[key].numpy()) ** 2).sum() for file in made]
        assert lost[1] < lost[0], key
    assert any(means[key].ndim == 2 for key in changed)
