"""A model on CUDA's kernels, run by the processor: the CPU's numbers, and the same bits in chunks of any size."""

import numpy as np
import pytest
import tiny
from emulated import emulated

from weft.backends.webgpu import weights
from weft.runtime import Decoder, Encoder, Head, open_checkpoint


@pytest.fixture(scope="module")
def cuda():
    return emulated()


def test_a_decoder_has_the_cpus_logits_and_the_same_bits_in_chunks(cuda, tmp_path):
    checkpoint = open_checkpoint(tiny.write_folder(tmp_path / "qwen3", tiny.CONFIGS["qwen3"]))
    ids = tiny.token_ids(tiny.CONFIGS["qwen3"], 20)
    decoder = Decoder(checkpoint, context=64, backend=cuda, kv_dtype="f16")
    whole = decoder.logits(ids)
    wanted = Decoder(checkpoint, context=64, backend="cpu", kv_dtype="f16").logits(ids)
    assert np.linalg.norm(whole - wanted) <= 1e-3 * np.linalg.norm(wanted)
    assert np.array_equal(decoder.logits(ids, chunk=18)[:18], whole[:18])
    for at in range(3):  # single tokens, of which the second and third are one graph
        assert np.array_equal(decoder.logits(ids[: at + 1], chunk=1), whole[: at + 1])


def test_a_decoder_whose_weights_two_halves_do_not_have_has_the_cpus_logits(cuda, tmp_path, monkeypatch):
    """Norms, too, which products on matrix units compute themselves."""
    monkeypatch.setattr(weights, "_far", lambda rows, stored: stored == "f32")
    checkpoint = open_checkpoint(tiny.write_folder(tmp_path / "qwen3", tiny.CONFIGS["qwen3"]))
    ids = tiny.token_ids(tiny.CONFIGS["qwen3"], 20)
    found = Decoder(checkpoint, context=64, backend=cuda, kv_dtype="f16").logits(ids)
    wanted = Decoder(checkpoint, context=64, backend="cpu", kv_dtype="f16").logits(ids)
    assert np.linalg.norm(found - wanted) <= 1e-3 * np.linalg.norm(wanted)


@pytest.mark.parametrize("compute, limit", [("f32", 1e-5), ("f16", 1e-3), ("bf16", 1e-2)])
def test_an_encoder_has_the_cpus_vectors_and_the_same_bits_in_every_batch(cuda, tmp_path, compute, limit):
    """What is rounded for "f16" and "bf16" is what the CPU rounds, up to sums and weights of attention."""
    checkpoint = open_checkpoint(tiny.write_folder(tmp_path / "bert", tiny.CONFIGS["bert"]))
    texts = [tiny.token_ids(tiny.CONFIGS["bert"], length) for length in (20, 1, 33)]
    encoder = Encoder(checkpoint, Head("mean"), backend=cuda, compute=compute)
    whole = encoder.vectors(texts)
    wanted = Encoder(checkpoint, Head("mean"), backend="cpu").vectors(texts)
    assert np.linalg.norm(whole - wanted) <= limit * np.linalg.norm(wanted)
    assert (compute == "f32") == bool(np.linalg.norm(whole - wanted) <= 1e-5 * np.linalg.norm(wanted))
    assert np.array_equal(encoder.vectors(texts[:1]), whole[:1])
    assert np.array_equal(encoder.vectors(texts[2:]), whole[2:])


def test_a_decoder_of_bfloats_has_the_same_bits_in_chunks(cuda, tmp_path):
    checkpoint = open_checkpoint(tiny.write_folder(tmp_path / "qwen3", tiny.CONFIGS["qwen3"]))
    ids = tiny.token_ids(tiny.CONFIGS["qwen3"], 20)
    decoder = Decoder(checkpoint, context=64, backend=cuda, compute="bf16")
    whole = decoder.logits(ids)
    wanted = Decoder(checkpoint, context=64, backend="cpu", compute="f32").logits(ids)
    assert 1e-4 < np.linalg.norm(whole - wanted) / np.linalg.norm(wanted) < 1e-2
    assert np.array_equal(decoder.logits(ids, chunk=18)[:18], whole[:18])
    assert np.array_equal(decoder.logits(ids[:2], chunk=1), whole[:2])
