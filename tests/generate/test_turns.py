"""Tenants share threads in turn, and a grammar whose work takes long holds up nobody else."""

import threading

import numpy as np
import pytest
from fake_decoder import VOCAB, FakeDecoder, expected_tokens

from weft.errors import BusyError, GrammarError
from weft.generate import Engine, Request, Sampling, sequence
from weft.generate.grammar import limits
from weft.generate.grammar.turns import Turns, tenant_now
from weft.generate.handle import Handle

LONG_S = 60.0  # a test that waits this long has failed


def test_a_tenant_whose_jobs_take_long_waits_for_itself() -> None:
    turns, go_on, order = Turns("test", 2, each=1), threading.Event(), []
    all_there = threading.Event()

    def job(name: str) -> str:
        order.append(name)
        return tenant_now.get()

    slow = turns.submit("a", lambda: go_on.wait(LONG_S))
    turns.submit("gate", lambda: all_there.wait(LONG_S))  # the other thread begins when all jobs are there
    behind = [turns.submit("a", lambda i=i: job(f"a{i}")) for i in range(3)]  # type: ignore[misc]
    others = [turns.submit(t, lambda t=t, i=i: job(f"{t}{i}")) for i in range(2) for t in "bbc"]  # type: ignore[misc]
    all_there.set()
    assert [future.result(LONG_S) for future in others] == list("bbcbbc")
    assert order[:3] == ["b0", "c0", "b0"] and not any(future.done() for future in behind)
    go_on.set()
    assert slow.result(LONG_S) and [future.result(LONG_S) for future in behind] == ["a"] * 3
    with pytest.raises(ZeroDivisionError):
        turns.submit("a", lambda: 1 // 0).result(LONG_S)


def test_each_tenant_compiles_one_grammar_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, began = threading.Event(), threading.Event()

    def slow() -> int:
        began.set()
        return go_on.wait(LONG_S) and 1

    def compile_for(tenant: str) -> int:
        tenant_now.set(tenant)
        return limits.in_time("regex", slow if tenant == "a" else lambda: 2)

    turns = Turns("test", 3, each=3)
    monkeypatch.setattr(limits, "COMPILE_SECONDS", LONG_S)
    first = turns.submit("", lambda: compile_for("a"))
    assert began.wait(LONG_S)
    assert turns.submit("", lambda: compile_for("b")).result(LONG_S) == 2
    monkeypatch.setattr(limits, "COMPILE_SECONDS", 0.01)
    with pytest.raises(BusyError, match="another grammar"):
        turns.submit("", lambda: compile_for("a")).result(LONG_S)
    go_on.set()
    assert first.result(LONG_S) == 1


class Slow:
    """A matcher that allows everything, and takes until `go_on` to say so."""

    stopped = False

    def __init__(self) -> None:
        self.go_on, self.began = threading.Event(), threading.Event()

    def mask(self) -> np.ndarray:
        self.began.set()
        assert self.go_on.wait(LONG_S), "the engine waits for the grammar"
        return np.full(-(-VOCAB // 32), 0xFFFFFFFF, np.uint32)

    def forced(self) -> tuple[int, ...]:
        return ()

    def advance(self, token: int) -> None: ...


def constrained(engine: Engine, request: Request) -> tuple[Handle, Slow]:
    handle, slow = engine.submit(request), Slow()
    handle._sequences[0].matcher = slow  # type: ignore[assignment]
    return handle, slow


def test_others_go_on_while_a_grammar_chooses_its_token() -> None:
    decoder = FakeDecoder(eos_ids=frozenset())
    engine = Engine(decoder)
    requests = [Request((i, 2, 3), Sampling(1.0, seed=i), max_tokens=9, ignore_eos=True) for i in range(4)]
    held, slow = zip(*[constrained(engine, request) for request in requests[:2]])
    others = [engine.submit(request) for request in requests[2:]]
    for request, handle in zip(requests[2:], others):
        assert handle.result().tokens == expected_tokens(request, 9)[0]
    assert not any(handle.finished for handle in held) and engine.running == 2
    for one in slow:
        one.go_on.set()
    for request, handle in zip(requests[:2], held):
        assert handle.result().tokens == expected_tokens(request, 9)[0]
    assert not engine.step() and decoder.pages.free_count == decoder.pages.count


@pytest.mark.parametrize("close", [False, True])
def test_a_request_can_be_cancelled_while_its_token_is_chosen(close: bool) -> None:
    decoder = FakeDecoder(eos_ids=frozenset())
    engine = Engine(decoder)
    handle, slow = constrained(engine, Request((1, 2), max_tokens=9))
    other = engine.submit(Request((5, 6), max_tokens=3, ignore_eos=True))
    other.result()
    assert slow.began.is_set() and not handle.finished
    handle.cancel()
    assert not handle.finished, "its pages are still being used"
    slow.go_on.set()
    if close:
        engine.close()
    assert handle.result().finish_reason == "cancelled"
    assert decoder.pages.free_count == decoder.pages.count and not engine.step()


def test_a_grammar_that_takes_too_long_for_a_token_ends_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence, "TOKEN_SECONDS", 0.0)
    engine = Engine(FakeDecoder())
    handle, slow = constrained(engine, Request((1, 2), max_tokens=9))
    slow.go_on.set()
    with pytest.raises(GrammarError, match="s for a token; at most 0 s are allowed"):
        handle.result()
    assert not engine.step()
