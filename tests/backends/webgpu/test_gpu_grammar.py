"""The largest logits of those that a grammar allows, found on the device: the tokens that whole rows give."""

import numpy as np
import pytest
from gpus import ALL
from tiny_chat_folder import write_chat_folder

import weft
from weft.backends.webgpu.executable import GpuExecutable
from weft.generate import Grammar, Request, Sampling
from weft.generate.choice.ahead import look_ahead
from weft.graph.single import single
from weft.ops.registry import catalogue

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["a cat", "a dog"]}, "count": {"type": "integer"}, "name": {"type": "string"}},
    "required": ["kind", "count", "name"],
    "additionalProperties": False,
}
RULES = [
    ({}, Grammar.json_schema(SCHEMA)),
    ({"temperature": 0.9, "top_k": 20, "seed": 3}, Grammar.json_object()),
    ({"temperature": 1.2, "top_k": 50, "top_p": 0.9, "seed": 5}, Grammar.regex("(ab|ac)*d[0-9]{3}")),
    ({"temperature": 1.0, "top_k": 5, "seed": 8}, Grammar.choices(["yes", "no", "perhaps"])),
    ({"temperature": 0.8, "top_k": 9, "seed": 2}, None),
    ({"temperature": 0.9, "top_k": 30, "repetition_penalty": 1.4, "seed": 7}, Grammar.json_object()),
    ({"frequency_penalty": 1.5, "logit_bias": {5: 3.0}}, Grammar.regex("(ab|ac)*d[0-9]{3}")),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_chat_folder(tmp_path_factory.mktemp("grammar") / "chat", {}))


def answers(model, rules=RULES):
    engine = weft.Engine(model)
    wanted = [
        Request([1, 5, 9, n], max_tokens=40 if ALL else 24, sampling=Sampling(**how), grammar=grammar)
        for n, (how, grammar) in enumerate(rules)
    ]
    return [handle.result().tokens for handle in [engine.submit(one) for one in wanted]]


def test_requests_with_grammars_choose_the_tokens_that_whole_rows_give(gpu, folder, monkeypatch):
    model = weft.load(folder, device="gpu", context=128)
    masked, whole = [], []
    run_top, run = GpuExecutable.run_top, GpuExecutable.run

    def noted(self, inputs, output, count, masks=None, *more):
        masked.extend(mask for mask in masks or () if mask is not None)
        return run_top(self, inputs, output, count, masks, *more)

    monkeypatch.setattr(GpuExecutable, "run_top", noted)
    monkeypatch.setattr(GpuExecutable, "run", lambda *given: whole.append(1) or run(*given))
    found = answers(model)
    assert len(masked) > 20 and len(whole) <= 3 * len(RULES)  # the first token of a request is chosen from a whole row
    alone = [answers(model, RULES[n : n + 1])[0] for n in (0, 3)]
    monkeypatch.setattr(type(model.decoder), "top", 0)
    masked.clear()
    assert answers(model) == found and not masked
    assert found == answers(weft.load(folder, device="cpu", context=128))
    assert alone == [answers(model, RULES[n : n + 1])[0] for n in (0, 3)]


def test_masks_ahead_are_those_after_each_draft(folder):
    model = weft.load(folder, device="cpu", context=128)
    engine = weft.Engine(model)
    handle = engine.submit(Request([1, 2], max_tokens=30, grammar=Grammar.json_schema(SCHEMA)))
    engine.step()
    (sequence,) = engine._sequences.values()
    handle.result()
    matcher = sequence.matcher.fork()
    matcher.rollback(sequence.generated)
    tokens = sequence.tokens[-sequence.generated :]
    ahead = look_ahead(matcher, 7, tokens[:4])
    after = matcher.fork()
    for place, mask in enumerate(ahead.masks):
        assert np.array_equal(mask, after.mask())
        after.advance(tokens[place])
    assert len(ahead) == 5 and ahead.fits(7, tokens[:4]) and ahead.fits(7, tokens[:2]) and ahead.fits(7, ())
    assert not ahead.fits(8, ()) and not ahead.fits(7, [tokens[0] + 1]) and not ahead.fits(7, tokens[:5])
    wrong = next(token for token in range(400) if not matcher.allowed([token]))
    assert len(look_ahead(matcher, 7, [wrong])) == 1  # of a draft that the grammar refuses only what comes before
    assert look_ahead(None, 7, ()).masks == [None]


@pytest.mark.parametrize("width", [59, 2500])
@pytest.mark.parametrize("count", [1, 40])
def test_the_largest_allowed_of_a_row_are_numpys(gpu, width, count):
    rng = np.random.default_rng(width)
    rows = rng.standard_normal((5, width)).astype(np.float32)
    words = -(-width // 32)
    allowed = rng.random((5, width)) < 0.3
    allowed[1] = False
    allowed[1, [3, width - 1]] = True
    bits = np.zeros((5, 32 * words), bool)
    bits[:, :width] = allowed
    packed = np.packbits(bits, axis=1, bitorder="little").view(np.uint32)
    masks = [packed[0], packed[1], None, packed[3], packed[4, :1]]  # a vocabulary may be shorter than the rows
    allowed[2], allowed[4, 32:] = True, False
    bound = single(catalogue()["scale"], (rows,), {"by": 1.0})
    found = gpu.compile(bound.program, bound.weights, {}).run_top(bound.inputs, "out0", count, masks)
    assert found.finite
    for row, can, ids, values in zip(rows, allowed, found.ids, found.values):
        order = np.lexsort((np.arange(width), -row.astype(np.float64)))
        want = order[can[order]][: len(ids)]
        assert np.array_equal(ids[: len(want)], want) and np.array_equal(values[: len(want)], row[want])
        assert np.isneginf(values[len(want) :]).all()


def test_a_number_that_is_not_finite_is_noticed_where_it_is_not_allowed(gpu):
    rows = np.ones((1, 64), np.float32)
    rows[0, 40] = np.nan
    bound = single(catalogue()["scale"], (rows,), {"by": 1.0})
    executable = gpu.compile(bound.program, bound.weights, {})
    assert not executable.run_top(bound.inputs, "out0", 1, [np.array([1, 0], np.uint32)]).finite
