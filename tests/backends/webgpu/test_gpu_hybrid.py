"""A model with all three kinds of state on a GPU: the reference's logits, the CPU's tokens, slots and checkpoints."""

import hybrid
import numpy as np
import pytest
import tiny
from gpus import ALL

import weft
from weft.generate import Engine, Request, Sampling
from weft.runtime import Decoder, open_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return open_checkpoint(hybrid.write_folder(tmp_path_factory.mktemp("hybrid")))


def text(length, seed=1):
    return np.random.default_rng(seed).integers(0, hybrid.CONFIG["vocab_size"], length)


def test_logits_are_the_references_in_chunks_of_any_size(gpu, checkpoint):
    decoder = Decoder(checkpoint, kv_tokens=640, backend=gpu)
    reference = Decoder(checkpoint, kv_tokens=640, backend="reference")
    ids = text(70)
    whole = decoder.logits(ids)
    np.testing.assert_allclose(whole, reference.logits(ids), atol=2e-4)
    for chunk in (1, 2, 31):
        np.testing.assert_array_equal(decoder.logits(ids, chunk=chunk), whole)
    assert decoder.slots.free_count == decoder.slots.count


def test_slots_are_read_and_written(gpu, checkpoint):
    decoder = Decoder(checkpoint, kv_tokens=640, backend=gpu)
    decoder.logits(text(9))
    slots = [decoder.read_slot(slot) for slot in range(decoder.slots.count)]
    assert {len(slot) for slot in slots} == {decoder.slot_bytes}
    (written,) = {slot for slot in slots if any(slot)}  # the state after the only step
    empty = next(index for index, slot in enumerate(slots) if not any(slot))
    decoder.write_slot(empty, written)
    assert decoder.read_slot(empty) == written


def test_slots_are_as_many_as_one_buffer_holds(gpu, checkpoint, monkeypatch):
    layer = 4 * 4 * 18 * 18  # bytes of a slot: heads, keys, values
    whole = Decoder(checkpoint, kv_tokens=2560, backend=gpu, bind=False)
    assert whole.slots.count > 18
    monkeypatch.setitem(gpu.device.limits, "max-storage-buffer-binding-size", 18 * layer)
    decoder = Decoder(checkpoint, kv_tokens=640, context=64, backend=gpu, bind=False)
    assert decoder.slots.count == 18


@pytest.mark.parametrize("drafts", [False, True] if ALL else [False])
def test_requests_that_share_are_preempted_and_resumed_have_the_tokens_of_each_alone(gpu, checkpoint, drafts):
    """Few pages and slots, shared beginnings past checkpoints, and chunks."""
    engine = Engine(Decoder(checkpoint, context=400, kv_tokens=1200, backend=gpu), step_tokens=96, speculate=drafts)
    start = text(300, seed=9).tolist()
    prompts = [tuple(start[:length] + text(5, seed=length).tolist()) for length in (1, 40, 257, 280, 300, 290)]
    requests = [Request(p, Sampling(0.0), max_tokens=60 if ALL else 24, ignore_eos=True) for p in prompts]
    found = [handle.result().tokens for handle in [engine.submit(request) for request in requests]]
    single = Decoder(checkpoint, context=400, backend=gpu)
    for request, tokens in zip(requests, found):
        alone = Engine(single, prefix_cache=False, speculate=False)
        assert alone.submit(request).result().tokens == tokens
    assert engine.stats().cached_tokens > 0


@pytest.mark.parametrize("name", ["qwen3_5_text", "granitemoehybrid", "nemotron_h", "lfm2"] if ALL else ["nemotron_h"])
def test_states_take_the_memory_that_the_plan_says(gpu, tmp_path, name):
    folder = str(tiny.write_folder(tmp_path, tiny.CONFIGS[name]))
    model = weft.load(folder, device="gpu", context=96)
    model.generate([1, 2, 3], max_tokens=2, ignore_eos=True)
    info = model.info
    states = [layer.buffer.nbytes for layer in model.decoder._states.layers.values()]
    assert sum(states) - info["kv_bytes"] in range(16 * len(states))  # buffers are whole sixteens of bytes
    assert info["slot_bytes"] > 0
