"""Instructions that share a dispatch, and attention that is split over workgroups, change no bit."""

import gc

import numpy as np
import pytest
import tiny
from gpus import ALL, CUDA, webgpu_only
from test_models import DECODERS

from weft.backends.webgpu.executable import Step
from weft.backends.webgpu.products import GPU_PRODUCTS, SOFTWARE_PRODUCTS
from weft.runtime import Decoder, open_checkpoint
from weft.runtime.paged.holding import slots_of
from weft.runtime.steps import build_step

LONG = 286  # tokens: more than four blocks of keys, so that the attention of few queries is split


def steps(decoder, ids):
    """Logits of a long prompt, of one token after it, and of three."""
    holding = decoder.holding()
    assert holding.grow(len(ids))
    found = []
    for first, end in ((0, LONG), (LONG, LONG + 1), (LONG + 1, LONG + 4)):
        part = ids[first:end]
        holding.ready()
        given = {"starts": [first], "asked": [min(3, len(part))], "pages": [holding.row]}
        found.append(decoder.run(build_step([part], **given, slots=slots_of([holding]))))
        holding.advance()
    holding.release()
    return np.concatenate(found)


@pytest.mark.parametrize("name", DECODERS if ALL else ["qwen3", "qwen3_5_moe_text"])
def test_fused_dispatches_have_the_bits_of_single_ones(gpu, tmp_path, monkeypatch, name):
    folder = tiny.write_folder(tmp_path, tiny.CONFIGS[name])
    ids = np.tile(tiny.token_ids(tiny.CONFIGS[name], 130), 3)[: LONG + 4]
    found, counts = [], []
    # On a real device one set of products is compared with itself: gpus.agree says why.
    single = SOFTWARE_PRODUCTS if gpu.device.adapter.software else GPU_PRODUCTS
    both = [gpu.device.products] * 2 if CUDA else [single, GPU_PRODUCTS]
    for fusing, products in zip((False, True), both):
        monkeypatch.setattr(gpu.device, "fusing", fusing)
        monkeypatch.setattr(gpu.device, "products", products)
        decoder = Decoder(open_checkpoint(folder), context=320, backend=gpu)
        found.append(steps(decoder, ids))
        executable = decoder._executable
        counts.append([len(executable._planned(Step(1, 1, 1, blocks))[0]) for blocks in (0, 8)])
    assert np.array_equal(found[0], found[1])
    if name == "qwen3" and not CUDA:  # two layers, the second of which takes rows in between
        assert counts == [[34, 36], [18, 20]]


@webgpu_only
def test_weights_that_lie_together_are_counted_once_and_cut_where_they_do_not_fit(gpu, tmp_path, monkeypatch):
    folder = tiny.write_folder(tmp_path, tiny.CONFIGS["qwen3"])
    before = gpu.device.used_bytes
    monkeypatch.setattr(gpu.device, "products", GPU_PRODUCTS)
    ids, found = tiny.token_ids(tiny.CONFIGS["qwen3"], 5), []
    sizes = []
    for limit in (1 << 27, 24_000):  # bytes of a buffer: q, k and v take 30,720
        monkeypatch.setitem(gpu.device.limits, "max-storage-buffer-binding-size", limit)
        decoder = Decoder(open_checkpoint(folder), context=64, backend=gpu)
        found.append(decoder.logits(ids))
        sizes.append(decoder.info["weight_bytes"])
        del decoder
    assert np.array_equal(found[0], found[1])
    assert sizes[0] == sizes[1] == sum(tensor_bytes(folder)) + 4 * 8  # the frequencies of rotations
    gc.collect()
    assert gpu.device.used_bytes <= before


def tensor_bytes(folder):
    """What each weight takes: rows of matrices are padded to 32 columns."""
    checkpoint = open_checkpoint(folder)
    for tensor in checkpoint.tensors.values():
        *rows, cols = tensor.view.shape
        padded = -(-cols // 32) * 32 if rows else cols
        yield 4 * int(np.prod(rows)) * padded
