"""A request: what is to be continued, how, and when to stop."""

import operator
from collections.abc import Iterable
from dataclasses import field
from typing import Any

from weft.errors import InputError, TooLongError
from weft.frozen import frozen
from weft.generate.choice.sampling import Sampling

MAX_STOPS = 16
MAX_CHOICES = 128
MAX_LOGPROBS = 20
MOST_PRIORITY = 1000
MAX_STOP_BYTES = 256
TRUNCATE = ("left", "right", "middle")


@frozen
class Request:
    """Token ids to continue. Any sequence of ids and strings is taken; they are kept as tuples.

    `max_tokens` None means as many as the context allows, which also caps a number that is given; 0 computes the prompt
    and nothing else. Generation ends at a stop string, at one of `stop_ids`, or at the model's own end tokens unless
    `ignore_eos`; none of them is part of the result, and none comes before `min_tokens`. A prompt that does not fit is
    an error unless `truncate` says where tokens may be dropped; then enough are dropped for `max_tokens` (None: a
    quarter of the context) to follow, but never more than leaves half the context, and the result reports how many.

    `n` answers are made, each as if it were alone with the seeds `seed`, `seed + 1`, ... `logprobs` asks for the log
    probability of every token, and of so many of the most probable ones beside it; `prompt_logprobs` for the prompt's,
    of whose tokens those before the place `prompt_logprobs_from` are left out (the first has none).
    `grammar` holds the text to a Grammar. `reasoning_budget` ends reasoning (`<think>`) after so many tokens.
    `adapter` is the name of a loaded adapter. `speculate` False computes one token at a time, None (the default) and
    True let drafts be checked where that pays.

    Of those that wait, the higher `priority` starts first, and `tenant`s take turns by what they have had. Pages of the
    state are shared between requests of one `salt` only, and with `prefix_cache` False with none. `show_special` writes
    special tokens out in the text.
    """

    prompt: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    truncate: str | None = None
    min_tokens: int = 0
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_from: int = 1
    grammar: Any = None
    reasoning_budget: int | None = None
    adapter: str | None = None
    speculate: bool | None = None
    priority: int = 0
    tenant: str = ""
    salt: str = ""
    prefix_cache: bool = True
    show_special: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", _ids("prompt", self.prompt))
        object.__setattr__(self, "stop_ids", _ids("stop_ids", self.stop_ids))
        object.__setattr__(self, "stop", _stops(self.stop))
        if not self.prompt:
            raise InputError("[request] prompt is empty; give at least one token id")
        if not isinstance(self.sampling, Sampling):
            raise InputError(f"[request] sampling is {self.sampling!r}; give a Sampling")
        self._count("max_tokens", 0, None, "None or a whole number of at least 0")
        self._count("min_tokens", 0, None, "a whole number of at least 0")
        self._count("n", 1, MAX_CHOICES, f"a whole number from 1 to {MAX_CHOICES}")
        self._count("logprobs", 0, MAX_LOGPROBS, f"None or a whole number from 0 to {MAX_LOGPROBS}")
        self._count("prompt_logprobs", 0, MAX_LOGPROBS, f"None or a whole number from 0 to {MAX_LOGPROBS}")
        self._count("prompt_logprobs_from", 1, None, "a whole number of at least 1")
        self._count("reasoning_budget", 0, None, "None or a whole number of at least 0")
        self._count("priority", -MOST_PRIORITY, MOST_PRIORITY, f"a whole number, at most {MOST_PRIORITY} either way")
        for name, kind in (
            ("ignore_eos", bool),
            ("prefix_cache", bool),
            ("show_special", bool),
            ("tenant", str),
            ("salt", str),
        ):
            if not isinstance(getattr(self, name), kind):
                wanted = "True or False" if kind is bool else "a string"
                raise InputError(f"[request] {name} is {getattr(self, name)!r:.80}; give {wanted}")
        for name, kind in (("speculate", bool), ("adapter", str)):
            if not isinstance(getattr(self, name), kind | None):
                wanted = "True, False" if kind is bool else "a string"
                raise InputError(f"[request] {name} is {getattr(self, name)!r:.80}; give {wanted} or None")
        if self.truncate is not None and self.truncate not in TRUNCATE:
            raise InputError(f"[request] truncate is {self.truncate!r}; give None, 'left', 'right' or 'middle'")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InputError(f"[request] min_tokens is {self.min_tokens}, more than max_tokens {self.max_tokens}")

    def _count(self, name: str, low: int, high: int | None, wanted: str) -> None:
        """Hold the number `name` to low..high and make it an int; None stays where it is the default."""
        if getattr(self, name) is None and type(self).__dict__[name] is None:
            return
        (value,) = _ids(name, (getattr(self, name),))
        if value < low or (high is not None and value > high):
            raise InputError(f"[request] {name} is {value}; give {wanted}")
        object.__setattr__(self, name, value)


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
