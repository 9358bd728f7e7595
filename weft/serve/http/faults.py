"""What can go wrong with a request, as one error that each API writes in its own shape."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from weft.errors import (
    BusyError,
    GrammarError,
    InputError,
    MemoryPlanError,
    NotFoundError,
    TooLongError,
    UnsupportedError,
    WeftError,
)

STALLED = 408  # the status of a client that stopped reading its stream
_FOLDERS = re.compile(r"(?<![\w.])/(?:[\w.@+ -]+/)+")


class Fault(Exception):
    """An answer that is an error. `param` is the field at fault, which `message` names; programs look at `code` and
    `details`, which only OpenAI's shape has. With `closes` the connection is closed after the answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
        details: Mapping[str, int] | None = None,
        closes: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.details = details
        self.closes = closes


def invalid(what: str, param: str | None = None, *, code: str | None = None) -> Fault:
    """400. `what` is a sentence or, where `param` is at fault, its predicate: invalid("needs tools", "tool_choice")."""
    return Fault(400, f"{param} {what}" if param else what, param=param, code=code)


def blaming(param: str, error: WeftError, *, status: int = 400, code: str | None = None) -> Fault:
    """An error of the library, reported as the fault of the field `param`, which it may not know."""
    return Fault(status, f"{param}: {message_of(error)}", param=param, code=code)


def too_busy(message: str, retry_after_s: int = 1) -> Fault:
    """429: the same request may succeed later."""
    return Fault(429, message, kind="rate_limit_error", code="queue_full", retry_after_s=retry_after_s)


def no_key() -> Fault:
    message = "an API key is required: send the header Authorization: Bearer KEY"
    return Fault(401, message, kind="authentication_error", code="no_key")


def wrong_key() -> Fault:
    message = "this API key is not valid for this server; send the header Authorization: Bearer KEY with another"
    return Fault(401, message, kind="authentication_error", code="invalid_api_key")


def slow_body(why: str) -> Fault:
    """408: the body is not awaited any longer, and the connection is closed."""
    return Fault(408, f"the body arrived too slowly: {why}", code="timeout", closes=True)


def unavailable(message: str, code: str = "unavailable", retry_after_s: int | None = 5) -> Fault:
    return Fault(503, message, kind="server_error", code=code, retry_after_s=retry_after_s)


def no_model(name: str) -> Fault:
    message = f"model {name!r:.200} is not served here; GET /v1/models lists the models"
    return Fault(404, message, kind="not_found_error", code="model_not_found", param="model")


def fault_of(error: BaseException) -> Fault:
    """Map an exception raised by a handler to a fault. Errors that no client can fix become a 500 without details."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, BusyError):
        return too_busy(message_of(error))
    if isinstance(error, GrammarError):
        return blaming(error.field or "response_format", error, code="grammar_error")
    if isinstance(error, InputError | UnsupportedError):
        code = "context_length_exceeded" if isinstance(error, TooLongError) else None
        return Fault(400, message_of(error), param=error.field, code=code)
    if isinstance(error, NotFoundError):
        return Fault(404, message_of(error), kind="not_found_error", param=error.field, code="not_found")
    if isinstance(error, MemoryPlanError):
        return unavailable("not enough free memory for this request; try again later", "out_of_memory")
    what = "the engine failed" if isinstance(error, WeftError) else "internal error"
    return Fault(500, f"{what}; the server's log has the details", kind="server_error", code="internal_error")


def message_of(error: WeftError) -> str:
    """The error's message for clients, which must not name the server's folders.

    A path in an attribute is reduced to its name. The pattern is the last defence: errors of the operating system and
    of the C++ core carry paths inside their text.
    """
    if isinstance(error.given, PurePath):
        error = error.but(given=error.given.name)
    return without_folders(str(error))


def without_folders(text: str) -> str:
    """A text in which paths are reduced to the names of files."""
    return _FOLDERS.sub("", text)


def openai_shape(fault: Fault) -> dict[str, Any]:
    error = {"message": fault.message, "type": fault.kind, "param": fault.param, "code": fault.code}
    return {"error": error if fault.details is None else {**error, "details": dict(fault.details)}}


def anthropic_shape(fault: Fault) -> dict[str, Any]:
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        529: "overloaded_error",
    }
    kind = kinds.get(fault.status, "invalid_request_error" if fault.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": fault.message}}


def ollama_shape(fault: Fault) -> dict[str, Any]:
    return {"error": fault.message}


def tei_shape(fault: Fault) -> dict[str, Any]:
    kinds = {400: "Validation", 413: "Validation", 422: "Validation", 424: "Backend", 429: "Overloaded"}
    return {"error": fault.message, "error_type": kinds.get(fault.status, "Backend")}


SHAPES = {"openai": openai_shape, "anthropic": anthropic_shape, "ollama": ollama_shape, "tei": tei_shape}


def shape_for(path: str) -> str:
    """The API whose shape an error on an unknown path gets."""
    if path.startswith("/api/"):
        return "ollama"
    if path.startswith("/v1/messages"):
        return "anthropic"
    return "openai"
