"""A model with all three kinds of state runs through the core: the same bits however its texts are cut and batched."""

import hybrid
import numpy as np
import pytest

from weft.errors import InputError
from weft.generate import Engine, Request, Sampling
from weft.nn.step import Step
from weft.runtime import Decoder, open_checkpoint
from weft.runtime.steps import build_step


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return open_checkpoint(hybrid.write_folder(tmp_path_factory.mktemp("hybrid")))


@pytest.fixture(scope="module")
def decoder(checkpoint):
    return Decoder(checkpoint, kv_tokens=4000)


def text(length: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, hybrid.CONFIG["vocab_size"], length)


def test_the_program_declares_each_kind_of_state(decoder):
    assert [value.kind for value in decoder.program.states] == ["kv", "recurrent", "recurrent", "conv", "conv"]
    assert decoder.slots is not None and decoder.info["kv_bytes"] > decoder.page_bytes * decoder.pages.count


def test_the_core_agrees_with_the_reference(checkpoint, decoder):
    reference = Decoder(checkpoint, kv_tokens=640, backend="reference")
    ids = text(70)
    np.testing.assert_allclose(decoder.logits(ids), reference.logits(ids), atol=2e-4)
    assert np.abs(decoder.logits(ids)).max() > 0.5


def test_any_chunks_give_the_same_bits(decoder):
    ids = text(130)
    whole = decoder.logits(ids)
    for chunk in (1, 2, 3, 31, 100):
        np.testing.assert_array_equal(decoder.logits(ids, chunk=chunk), whole)


def test_sequences_side_by_side_give_the_bits_they_have_alone(decoder):
    texts = [text(length, seed=length) for length in (1, 2, 5, 33)]
    holdings = [decoder.holding() for _ in texts]
    for holding, ids in zip(holdings, texts):
        assert holding.grow(len(ids))
        holding.ready()
    step = build_step(
        [ids.astype(np.int32) for ids in texts],
        asked=list(map(len, texts)),
        pages=[holding.row for holding in holdings],
        slots=[holding.slots for holding in holdings],
    )
    together = decoder.run(step)
    for holding in holdings:
        holding.release()
    np.testing.assert_array_equal(together, np.concatenate([decoder.logits(ids) for ids in texts]))


@pytest.mark.parametrize("drafts", [False, True])
def test_an_engine_gives_every_request_the_tokens_it_has_alone(checkpoint, drafts):
    """Few pages and slots, shared beginnings past checkpoints, chunks, preemption and drafts."""
    small = Decoder(checkpoint, context=400, kv_tokens=1200)
    engine = Engine(small, step_tokens=96, speculate=drafts)
    start = text(300, seed=9).tolist()
    prompts = [tuple(start[:length] + text(5, seed=length).tolist()) for length in (1, 40, 257, 280, 300, 290)]
    requests = [Request(p, Sampling(0.0), max_tokens=60, ignore_eos=True) for p in prompts]
    handles = [engine.submit(request) for request in requests]
    found = [handle.result().tokens for handle in handles]
    for request, tokens in zip(requests, found):
        alone = Engine(Decoder(checkpoint, context=400), prefix_cache=False, speculate=False)
        assert alone.submit(request).result().tokens == tokens
    assert engine.stats().cached_tokens > 0


def test_slots_that_do_not_exist_or_meet_are_refused(decoder):
    count = decoder.slots.count
    given = {"ids": [1], "positions": [0], "segments": [0, 1], "rows": [0]}
    arrays = {name: np.asarray(values, np.int32) for name, values in given.items()}
    pages = np.zeros((1, decoder.max_pages), np.int32)
    for slots in ([[-2, 0]], [[0, count]], [[count, 0]], [[3, 3]]):
        with pytest.raises(InputError, match="slots"):
            decoder.run(Step(**arrays, pages=pages, slots=np.asarray(slots, np.int32)))


def test_a_slot_as_bytes_comes_back_as_it_was(decoder):
    states = decoder._states
    data = np.random.default_rng(0).bytes(len(states.read_slot(0)))
    states.write_slot(3, data)
    assert states.read_slot(3) == data
    assert states.read_slot(4) != data
    with pytest.raises(InputError, match="bytes"):
        states.write_slot(3, data[1:])
