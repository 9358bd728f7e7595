"""libweft through ctypes, as a host in another language calls it: weft.h, declared once more."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARY = ROOT / "build" / "dev" / "libweft.so"

INPUT, TOO_LONG, FORMAT, UNSUPPORTED, NOT_FOUND, MEMORY, SPACE, CANCELLED = range(1, 9)


class Options(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("threads", ctypes.c_int32),
        ("level", ctypes.c_char_p),
        ("trust_digests", ctypes.c_int32),
        ("log", ctypes.c_void_p),
        ("user", ctypes.c_void_p),
        ("context", ctypes.c_int32),
        ("step_tokens", ctypes.c_int32),
    ]


class EmbedOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("role", ctypes.c_char_p),
        ("truncate", ctypes.c_int32),
        ("adapter", ctypes.c_void_p),
    ]


class GenerateOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("max_tokens", ctypes.c_int32),
        ("top_k", ctypes.c_int32),
        ("temperature", ctypes.c_double),
        ("top_p", ctypes.c_double),
        ("min_p", ctypes.c_double),
        ("repetition_penalty", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        ("stops", ctypes.POINTER(ctypes.c_char_p)),
        ("stop_count", ctypes.c_size_t),
        ("adapter", ctypes.c_void_p),
    ]


class Result(ctypes.Structure):
    _fields_ = [("prompt_tokens", ctypes.c_size_t), ("tokens", ctypes.c_size_t), ("finish", ctypes.c_int)]


class Message(ctypes.Structure):
    _fields_ = [("role", ctypes.c_char_p), ("content", ctypes.c_char_p)]


ON_TOKEN = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t
)
FINISH = ["stop", "length", "cancelled"]


class Said(NamedTuple):
    """An answer: its text, the ids of its tokens, why it ended."""

    text: str
    tokens: tuple[int, ...]
    finish: str
    prompt_tokens: int


class StatusError(Exception):
    """A call that failed: its status and its message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


def load() -> ctypes.CDLL:
    """The library; a test that needs it is skipped where it was not built."""
    if not LIBRARY.is_file():
        pytest.skip("libweft.so is not built here: `make capi` builds it")
    library = ctypes.CDLL(str(LIBRARY))
    library.weft_last_error.restype = library.weft_info.restype = ctypes.c_char_p
    library.weft_adapter_info.restype = ctypes.c_char_p
    library.weft_adapter_info.argtypes = library.weft_adapter_free.argtypes = [ctypes.c_void_p]
    library.weft_dimension.restype = ctypes.c_size_t
    library.weft_dimension.argtypes = library.weft_info.argtypes = library.weft_close.argtypes = [ctypes.c_void_p]
    library.weft_cancel.argtypes = [ctypes.c_void_p]
    steps = (library.weft_next_step, library.weft_take_largest, library.weft_finish_steps)
    for call, more in zip(steps, (ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)):
        call.argtypes = [ctypes.c_void_p, more]
    return library


class Model:
    """An open bundle; a context."""

    def __init__(
        self,
        folder: Path,
        *,
        level: str | None = None,
        threads: int = 1,
        trust: bool = False,
        context: int = 0,
        step_tokens: int = 0,
    ) -> None:
        self.library, self.handle = load(), ctypes.c_void_p()
        named = None if level is None else level.encode()
        options = Options(ctypes.sizeof(Options), threads, named, int(trust), None, None, context, step_tokens)
        self.check(self.library.weft_open(str(folder).encode(), ctypes.byref(options), ctypes.byref(self.handle)))

    def check(self, status: int) -> None:
        if status:
            raise StatusError(status, self.library.weft_last_error().decode())

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self.library.weft_close(self.handle)

    @property
    def info(self) -> str:
        return self.library.weft_info(self.handle).decode()

    def load_adapter(self, file: Path | bytes) -> ctypes.c_void_p:
        """An adapter from its file, or from memory; `free_adapter` ends it."""
        found = ctypes.c_void_p()
        if isinstance(file, bytes):
            size = ctypes.c_size_t(len(file))
            self.check(self.library.weft_adapter_load_memory(self.handle, file, size, ctypes.byref(found)))
        else:
            self.check(self.library.weft_adapter_load(self.handle, str(file).encode(), ctypes.byref(found)))
        return found

    def adapter_info(self, adapter: ctypes.c_void_p) -> str:
        return self.library.weft_adapter_info(adapter).decode()

    def free_adapter(self, adapter: ctypes.c_void_p | None) -> None:
        self.library.weft_adapter_free(adapter)

    def embed(
        self,
        texts: Sequence[str],
        *,
        role: str | None = None,
        truncate: bool = False,
        adapter: ctypes.c_void_p | None = None,
    ) -> np.ndarray:
        out = np.zeros((len(texts), self.library.weft_dimension(self.handle)), np.float32)
        given = (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))
        named = None if role is None else role.encode()
        options = EmbedOptions(ctypes.sizeof(EmbedOptions), named, int(truncate), adapter)
        place = out.ctypes.data_as(ctypes.c_void_p)
        self.check(
            self.library.weft_embed(self.handle, given, ctypes.c_size_t(len(texts)), ctypes.byref(options), place)
        )
        return out

    def tokenise(self, text: str, flags: int = 1) -> list[int]:
        raw, count = text.encode(), ctypes.c_size_t()
        call = self.library.weft_tokenise
        size = ctypes.c_size_t(len(raw))
        call(self.handle, raw, size, flags, None, ctypes.c_size_t(0), ctypes.byref(count))
        ids = (ctypes.c_int32 * max(count.value, 1))()
        self.check(call(self.handle, raw, size, flags, ids, count, ctypes.byref(count)))
        return list(ids[: count.value])

    def generate(self, prompt: str, **options: Any) -> Said:
        return self._said(self.library.weft_generate, (prompt.encode(),), **options)

    def chat(self, messages: Sequence[Mapping[str, str]], **options: Any) -> Said:
        given = (Message * len(messages))(*((m["role"].encode(), m["content"].encode()) for m in messages))
        return self._said(self.library.weft_chat, (given, ctypes.c_size_t(len(messages))), **options)

    def _said(
        self,
        call: Any,
        what: tuple[Any, ...],
        *,
        on_token: Callable[[int, str], bool] = lambda _, __: False,
        stops: Sequence[str] = (),
        **options: Any,
    ) -> Said:
        """The whole answer; `on_token` cancels it by returning True."""
        held = (ctypes.c_char_p * max(len(stops), 1))(*(stop.encode() for stop in stops))
        rules = {"max_tokens": 256, "top_p": 1.0, "repetition_penalty": 1.0, **options}
        given = GenerateOptions(size=ctypes.sizeof(GenerateOptions), stops=held, stop_count=len(stops), **rules)
        texts: list[str] = []
        tokens: list[int] = []
        result = Result()

        def received(_: object, id: int, text: Any, size: int) -> int:
            texts.append(text[:size].decode())
            if id >= 0:
                tokens.append(id)
            return on_token(id, texts[-1])

        self.check(call(self.handle, *what, ctypes.byref(given), ON_TOKEN(received), None, ctypes.byref(result)))
        assert result.tokens == len(tokens)
        return Said("".join(texts), tuple(tokens), FINISH[result.finish], result.prompt_tokens)
