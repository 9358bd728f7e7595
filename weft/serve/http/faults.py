"""What can go wrong with a request, as one error that every API says in its own shape."""

from __future__ import annotations

import re
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

# How weft's own messages begin where a number is at fault: "[sampling] temperature is 3; give ...".
_FIELD = re.compile(r"\[(?:sampling|request|engine)\] (\w+)(?:: | (?:is|has|must)\b)")
_PATH = re.compile(r"(?<![\w.])/(?:[\w.@+ -]+/)+")


class Fault(Exception):
    """An answer that is an error. `param` is the field at fault, `code` what programs look at."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s


def invalid(message: str, param: str | None = None, *, code: str | None = None) -> Fault:
    """400: what the client sent cannot be used."""
    return Fault(400, message, param=param, code=code)


def too_busy(message: str, retry_after_s: int = 1) -> Fault:
    """429: the same request may succeed later."""
    return Fault(429, message, kind="rate_limit_error", code="queue_full", retry_after_s=retry_after_s)


def unavailable(message: str, code: str = "unavailable", retry_after_s: int | None = 5) -> Fault:
    return Fault(503, message, kind="server_error", code=code, retry_after_s=retry_after_s)


def no_model(name: str) -> Fault:
    message = f"The model {name!r:.200} does not exist here; GET /v1/models lists those that do"
    return Fault(404, message, kind="not_found_error", code="model_not_found", param="model")


def fault_of(error: BaseException) -> Fault:
    """The fault that an exception of a handler is. What is nobody's request to mend is a 500 that says nothing."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, TooLongError):
        return invalid(without_paths(str(error)), code="context_length_exceeded")
    if isinstance(error, BusyError):
        return too_busy(without_paths(str(error)))
    if isinstance(error, GrammarError):
        return invalid(without_paths(str(error)), "response_format", code="grammar_error")
    if isinstance(error, InputError | UnsupportedError):
        return invalid(without_paths(str(error)), _field(str(error)))
    if isinstance(error, NotFoundError):
        return Fault(404, without_paths(str(error)), kind="not_found_error", code="not_found")
    if isinstance(error, MemoryPlanError):
        return unavailable("there is no room in memory for this now", "out_of_memory")
    kind = "the engine failed" if isinstance(error, WeftError) else "something went wrong in the server"
    return Fault(500, f"{kind}; the server's log has this request's id", kind="server_error", code="internal_error")


def _field(message: str) -> str | None:
    """The field that a message of weft's own is about."""
    found = _FIELD.match(message)
    return found[1] if found else "stop" if "stop string" in message else None


def without_paths(message: str) -> str:
    """A message without the folders of the server's files."""
    return _PATH.sub("", message)


def openai_shape(fault: Fault) -> dict[str, Any]:
    return {"error": {"message": fault.message, "type": fault.kind, "param": fault.param, "code": fault.code}}


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
    where = f"{fault.param}: " if fault.param and fault.param not in fault.message else ""
    return {"type": "error", "error": {"type": kind, "message": where + fault.message}}


def ollama_shape(fault: Fault) -> dict[str, Any]:
    where = f"{fault.param}: " if fault.param and fault.param not in fault.message else ""
    return {"error": where + fault.message}


def tei_shape(fault: Fault) -> dict[str, Any]:
    kinds = {400: "Validation", 413: "Validation", 422: "Validation", 424: "Backend", 429: "Overloaded"}
    where = f"{fault.param}: " if fault.param and fault.param not in fault.message else ""
    return {"error": where + fault.message, "error_type": kinds.get(fault.status, "Backend")}


SHAPES = {"openai": openai_shape, "anthropic": anthropic_shape, "ollama": ollama_shape, "tei": tei_shape}


def shape_for(path: str) -> str:
    """The API that a path which nobody serves looks like."""
    if path.startswith("/api/"):
        return "ollama"
    if path.startswith("/v1/messages"):
        return "anthropic"
    return "openai"
