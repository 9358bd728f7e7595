"""A request: what is to be continued, how, and when to stop."""

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from weft.errors import InputError, TooLongError
from weft.generate.sampling import Sampling

MAX_STOPS = 16
MAX_STOP_BYTES = 256
TRUNCATE = ("left", "right", "middle")


@dataclass(frozen=True)
class Request:
    """Token ids to continue. Any sequence of ids and strings is taken; they are kept as tuples.

    `max_tokens` None means as many as the context allows, which also caps a number that is given. Generation ends at a
    stop string, at one of `stop_ids`, or at the model's own end tokens unless `ignore_eos`; none of them is part of
    the result. A prompt that does not fit is an error unless `truncate` says where tokens may be dropped; then enough
    are dropped for `max_tokens` (None: a quarter of the context) to follow, but never more than leaves half the
    context, and the result reports how many.
    """

    prompt: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    truncate: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", _ids("prompt", self.prompt))
        object.__setattr__(self, "stop_ids", _ids("stop_ids", self.stop_ids))
        object.__setattr__(self, "stop", _stops(self.stop))
        if not self.prompt:
            raise InputError("[request] prompt is empty; give at least one token id")
        if not isinstance(self.sampling, Sampling):
            raise InputError(f"[request] sampling is {self.sampling!r}; give a Sampling")
        if self.max_tokens is not None:
            (count,) = _ids("max_tokens", (self.max_tokens,))
            if count < 1:
                raise InputError(f"[request] max_tokens is {count}; give None or a whole number of at least 1")
            object.__setattr__(self, "max_tokens", count)
        if not isinstance(self.ignore_eos, bool):
            raise InputError(f"[request] ignore_eos is {self.ignore_eos!r}; give True or False")
        if self.truncate is not None and self.truncate not in TRUNCATE:
            raise InputError(f"[request] truncate is {self.truncate!r}; give None, 'left', 'right' or 'middle'")


def _ids(name: str, values: Iterable[Any]) -> tuple[int, ...]:
    """Whole numbers as a tuple of ints; truth values are not numbers here."""
    try:
        values = tuple(values)
        if bool not in map(type, values):
            return tuple(map(operator.index, values))
    except TypeError as error:
        raise InputError(f"[request] {name} must be whole numbers: {error}") from None
    raise InputError(f"[request] {name} must be whole numbers: a truth value was given")


def _stops(stops: Any) -> tuple[str, ...]:
    """Stop strings as a tuple without repeats; one string alone is a tuple of one."""
    if not isinstance(stops, Iterable):
        raise InputError(f"[request] stop is {stops!r}; give a string or strings")
    stops = (stops,) if isinstance(stops, str) else tuple(stops)
    if len(stops) > MAX_STOPS:
        raise InputError(f"[request] {len(stops)} stop strings given; at most {MAX_STOPS} are taken")
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise InputError(f"[request] {stop!r} is no stop string; give strings that are not empty")
        size_bytes = len(stop.encode("utf-8", "surrogatepass"))
        if size_bytes > MAX_STOP_BYTES:
            raise InputError(f"[request] a stop string has {size_bytes} bytes; at most {MAX_STOP_BYTES} are taken")
    return tuple(dict.fromkeys(stops))


def fit(request: Request, context: int, what: str) -> tuple[int, ...]:
    """The prompt, or what truncation leaves of it, so that at least one token can follow within `context` tokens.

    `what` names the thing that sets the limit, for the error.
    """
    prompt = request.prompt
    if len(prompt) < context:
        return prompt
    if request.truncate is None:
        raise TooLongError(
            f"[request] the prompt has {len(prompt)} tokens, {what} leaves room for {context - 1}; "
            "shorten it, or say with truncate='left', 'middle' or 'right' where to drop tokens",
            length=len(prompt),
            limit=context - 1,
        )
    room = min(request.max_tokens or max(context // 4, 1), max(context // 2, 1))
    kept = context - room
    head = {"left": 0, "middle": kept // 2, "right": kept}[request.truncate]
    return prompt[:head] + prompt[len(prompt) - (kept - head) :]
