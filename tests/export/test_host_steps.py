"""Steps that a host computes itself, through the C interface: what is refused, and what a text leaves behind."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import libweft
import pytest
from libweft import INPUT, ON_TOKEN, UNSUPPORTED, GenerateOptions, Model, StatusError
from tiny_chat import write_chat_model

from weft.export import export


class Step(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("wanted", ctypes.c_int),
        *((name, ctypes.c_size_t) for name in ("tokens", "sequences", "row_count", "page_width")),
        *((name, ctypes.c_void_p) for name in ("ids", "positions", "types", "segments", "spans", "rows", "pages")),
    ]


class Host:
    """A model whose steps this host computes: it says which token is the largest."""

    def __init__(self, model: Model) -> None:
        self.model, self.library = model, model.library
        self.on_token: Callable[[], None] = lambda: None
        self._heard = ON_TOKEN(self._tell)  # for as long as texts are written

    def _tell(self, *_: object) -> int:
        self.on_token()
        return 0

    def begin(self, prompt: bytes | None) -> None:
        options = GenerateOptions(size=ctypes.sizeof(GenerateOptions), max_tokens=50, top_p=1, repetition_penalty=1)
        call = self.library.weft_begin_generate
        self.model.check(call(self.model.handle, prompt, ctypes.byref(options), self._heard, None))

    def next(self) -> Step:
        step = Step(size=ctypes.sizeof(Step))
        self.model.check(self.library.weft_next_step(self.model.handle, ctypes.byref(step)))
        return step

    def take(self, token: int) -> None:
        self.model.check(self.library.weft_take_largest(self.model.handle, token))

    def finish(self) -> int:
        return int(self.library.weft_finish_steps(self.model.handle, None))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    libweft.load()
    folder = tmp_path_factory.mktemp("steps")
    return export(str(write_chat_model(folder / "tiny.gguf")), folder / "b.weft", compute="f32").path


@pytest.fixture
def host(bundle: Path) -> Iterator[Host]:
    with Model(bundle, step_tokens=64) as model:
        yield Host(model)


def refused(call: Callable[[], Any]) -> StatusError:
    with pytest.raises(StatusError) as found:
        call()
    return found.value


def test_steps_of_a_text_follow_what_the_host_took(host: Host) -> None:
    host.begin(b"Once upon a time")
    first = host.next()
    assert (first.sequences, first.row_count) == (1, 1)
    host.take(5)
    then = host.next()
    assert (then.tokens, ctypes.c_int32.from_address(then.ids).value) == (1, 5)
    assert ctypes.c_int32.from_address(then.positions).value == first.tokens
    assert host.finish() == libweft.CANCELLED
    host.begin(b"Once upon a time")
    assert host.next().tokens == 1  # what the host has computed is not computed again


def test_the_hosts_steps_are_for_models_that_were_opened_for_them(bundle: Path, host: Host) -> None:
    """A text of one would be taken for what the other has computed."""
    with Model(bundle) as plain:
        wanted = plain.generate("Once upon a time", max_tokens=6)
        error = refused(lambda: Host(plain).begin(b"Once upon a time"))
        assert (error.status, "step_tokens" in error.message) == (UNSUPPORTED, True)
        assert plain.generate("Once upon a time", max_tokens=6) == wanted
    host.begin(b"Once upon a time")
    tokens = host.next().tokens
    host.take(5)
    error = refused(lambda: host.model.generate("Twice", max_tokens=6))
    assert (error.status, "weft_next_step" in error.message) == (UNSUPPORTED, True)
    assert ctypes.c_int32.from_address(host.next().positions).value == tokens


def test_a_text_that_cannot_begin_gives_up_the_one_before(host: Host) -> None:
    host.begin(b"Once upon a time")
    host.next()
    assert refused(lambda: host.begin(None)).status == INPUT
    for call in (host.next, lambda: host.take(5), lambda: host.model.check(host.finish())):
        assert refused(call).status == INPUT


def test_a_text_that_another_thread_ended_is_refused(host: Host) -> None:
    """The token's callback holds the model's turn, until others wait for it."""
    host.begin(b"Once upon a time")
    host.next()
    inside, ended = threading.Event(), threading.Event()
    found: list[int] = []

    def hold() -> None:
        inside.set()
        ended.wait(30)

    host.on_token = hold
    writing = threading.Thread(target=host.take, args=(5,))
    writing.start()
    assert inside.wait(30)
    calls = [threading.Thread(target=lambda: found.append(host.finish())) for _ in range(2)]
    for call in calls:
        call.start()
    calls[0].join(0.5)  # both are inside the library now, where nothing tells that they wait
    ended.set()
    for thread in (writing, *calls):
        thread.join(30)
    assert sorted(found) == [INPUT, libweft.CANCELLED]
