"""A request: the prompt, how tokens are chosen, and when generation stops."""

import operator
from collections.abc import Iterable
from dataclasses import field
from typing import Any

from weft.errors import InputError, TooLongError
from weft.frozen import frozen
from weft.generate.choice.sampling import Sampling
from weft.generate.sight.prompt import Prompt, Seen, checked

MAX_STOPS = 16
MAX_CHOICES = 128
MAX_LOGPROBS = 20
MOST_PRIORITY = 1000
MAX_STOP_BYTES = 256
TRUNCATE = ("left", "right", "middle")


@frozen
class Request:
    """Token ids to continue. Any sequences of ids and of strings are accepted; they are kept as tuples.

    `max_tokens` None means as many as the context allows, which also caps a number that is given; 0 computes the prompt
    and nothing else. Generation ends at a stop string, at one of `stop_ids`, or at the model's own end tokens unless
    `ignore_eos`; none of them is part of the result, and none is allowed before `min_tokens`. A prompt that does not
    fit is an error unless `truncate` says where tokens may be dropped; then enough are dropped for `max_tokens` (None:
    a quarter of the context) to follow, but at most half the context, and the result reports how many.

    `n` answers are generated, each as if it were alone, with the seeds `seed`, `seed + 1`, ... `logprobs` returns the
    log probability of every token and of that many most probable tokens at its position; `prompt_logprobs` does the
    same for the prompt, from position `prompt_logprobs_from` on (the first token has none).
    `grammar` constrains the text to a Grammar. `reasoning_budget` ends reasoning (`<think>`) after that many tokens.
    `adapter` is the name of a loaded adapter. `speculate` False computes one token at a time; None (the default) and
    True allow speculative decoding where it pays.

    Waiting requests start by higher `priority` first, and `tenant`s share the engine fairly. Pages of the KV cache are
    shared only between requests with the same `salt`, and not at all with `prefix_cache` False. `show_special` writes
    special tokens out in the text.

    `pictures` are the tokens of the prompt that are vectors (Seen), for models that see; a `Prompt`, which
    `model.chat_ids` makes of messages with pictures, has them with it. Such a prompt is never truncated.
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
    pictures: tuple[Seen, ...] = ()

    def __post_init__(self) -> None:
        pictures = self.pictures or (self.prompt.pictures if isinstance(self.prompt, Prompt) else ())
        object.__setattr__(self, "prompt", _ids("prompt", self.prompt))
        object.__setattr__(self, "pictures", checked(pictures, len(self.prompt)))
        object.__setattr__(self, "stop_ids", _ids("stop_ids", self.stop_ids))
        object.__setattr__(self, "stop", _stops(self.stop))
        if not self.prompt:
            raise InputError("request", "is empty", field="prompt", advice="give at least one token id")
        if not isinstance(self.sampling, Sampling):
            raise InputError("request", "must be a Sampling", field="sampling", given=self.sampling)
        self._count("max_tokens", 0, None, "None or a whole number of at least 0")
        self._count("min_tokens", 0, None, "a whole number of at least 0")
        self._count("n", 1, MAX_CHOICES, f"a whole number from 1 to {MAX_CHOICES}")
        self._count("logprobs", 0, MAX_LOGPROBS, f"None or a whole number from 0 to {MAX_LOGPROBS}")
        self._count("prompt_logprobs", 0, MAX_LOGPROBS, f"None or a whole number from 0 to {MAX_LOGPROBS}")
        self._count("prompt_logprobs_from", 1, None, "a whole number of at least 1")
        self._count("reasoning_budget", 0, None, "None or a whole number of at least 0")
        self._count(
            "priority", -MOST_PRIORITY, MOST_PRIORITY, f"a whole number from -{MOST_PRIORITY} to {MOST_PRIORITY}"
        )
        for name, kind in (
            ("ignore_eos", bool),
            ("prefix_cache", bool),
            ("show_special", bool),
            ("tenant", str),
            ("salt", str),
        ):
            if not isinstance(getattr(self, name), kind):
                wanted = "True or False" if kind is bool else "a string"
                raise InputError("request", f"must be {wanted}", field=name, given=getattr(self, name))
        for name, kind in (("speculate", bool), ("adapter", str)):
            if not isinstance(getattr(self, name), kind | None):
                wanted = "True, False" if kind is bool else "a string"
                raise InputError("request", f"must be {wanted} or None", field=name, given=getattr(self, name))
        if self.truncate is not None and self.truncate not in TRUNCATE:
            wanted = "must be None, 'left', 'right' or 'middle'"
            raise InputError("request", wanted, field="truncate", given=self.truncate)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            limit = f"must be at most max_tokens, which is {self.max_tokens}"
            raise InputError("request", limit, field="min_tokens", given=self.min_tokens)

    def _count(self, name: str, low: int, high: int | None, wanted: str) -> None:
        """Check that the number `name` is in low..high and make it an int; None is kept where it is the default."""
        if getattr(self, name) is None and type(self).__dict__[name] is None:
            return
        try:
            (value,) = _ids(name, (getattr(self, name),))
        except InputError as error:
            raise error.but(what=f"must be {wanted}", given=getattr(self, name)) from None
        if value < low or (high is not None and value > high):
            raise InputError("request", f"must be {wanted}", field=name, given=value)
        object.__setattr__(self, name, value)


def _ids(name: str, values: Iterable[Any]) -> tuple[int, ...]:
    """Whole numbers as a tuple of ints; booleans are refused."""
    try:
        given = tuple(values)
        if bool not in map(type, given):
            return tuple(map(operator.index, given))
    except TypeError:
        pass
    raise InputError("request", "must be a sequence of whole numbers", field=name, given=values)


def _stops(stops: Any) -> tuple[str, ...]:
    """Stop strings as a tuple without repeats; a single string becomes a tuple of one."""
    if not isinstance(stops, Iterable):
        raise InputError("request", "must be a string or several strings", field="stop", given=stops)
    stops = (stops,) if isinstance(stops, str) else tuple(stops)
    if len(stops) > MAX_STOPS:
        raise InputError("request", f"has {len(stops)} strings; at most {MAX_STOPS} are allowed", field="stop")
    for index, stop in enumerate(stops):
        if not isinstance(stop, str) or not stop:
            raise InputError("request", "must be a string that is not empty", field="stop", index=index, given=stop)
        size_bytes = len(stop.encode("utf-8", "surrogatepass"))
        if size_bytes > MAX_STOP_BYTES:
            limit = f"has {size_bytes} bytes; at most {MAX_STOP_BYTES} are allowed"
            raise InputError("request", limit, field="stop", index=index)
    return tuple(dict.fromkeys(stops))


def fit(request: Request, context: int, limited_by: str) -> tuple[int, ...]:
    """The prompt, truncated where the request allows it, so that at least one token can follow within `context` tokens.

    `limited_by` names what sets the limit, for the error message.
    """
    prompt = request.prompt
    if len(prompt) < context:
        return prompt
    if request.truncate is None or request.pictures:
        cut = "shorten it, or choose with truncate='left', 'middle' or 'right' where tokens are dropped"
        raise TooLongError(
            "request",
            f"has {len(prompt)} tokens, {limited_by} leaves room for {context - 1}",
            advice="shorten it, or give fewer or smaller pictures" if request.pictures else cut,
            field="prompt",
            index=None,
            length=len(prompt),
            limit=context - 1,
        )
    room = min(request.max_tokens or max(context // 4, 1), max(context // 2, 1))
    kept = context - room
    head = {"left": 0, "middle": kept // 2, "right": kept}[request.truncate]
    return prompt[:head] + prompt[len(prompt) - (kept - head) :]
