"""One call, one request or many: what `model.generate` and `model.stream` are made of."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any

from weft.errors import InputError
from weft.generate.choice.sampling import Sampling
from weft.generate.engine import Engine
from weft.generate.handle import Handle
from weft.generate.request import Request
from weft.generate.result import Generation, Piece

_SAMPLING = frozenset(f.name for f in fields(Sampling))
_REQUEST = frozenset(f.name for f in fields(Request)) - {"prompt", "sampling"}


def make_request(prompt_ids: Sequence[int], **options: Any) -> Request:
    """A Request from flat options: the fields of Sampling and of Request, all by name."""
    unknown = sorted(options.keys() - _SAMPLING - _REQUEST)
    if unknown:
        known = ", ".join(sorted(_SAMPLING | _REQUEST))
        raise InputError(f"[generate] unknown option {', '.join(unknown)}; there are {known}")
    sampling = Sampling(**{name: options.pop(name) for name in options.keys() & _SAMPLING})
    return Request(tuple(prompt_ids), sampling, **options)


def generate(engine: Engine, prompt_ids: Sequence[int], **options: Any) -> Generation:
    """Continue `prompt_ids` to the end."""
    return engine.submit(make_request(prompt_ids, **options)).result()


def generate_all(engine: Engine, requests: Iterable[Request]) -> Iterator[list[Generation]]:
    """The answers to each of many requests, in their order, running as many at once as the engine takes.

    The queue is kept full, not longer, so there may be any number of requests. Leaving the loop, by an error too,
    cancels those that run.
    """
    handles: list[Handle] = []
    coming = iter(requests)
    more = True
    try:
        while more or handles:
            while more and engine.has_room:
                request = next(coming, None)
                more = request is not None
                if request is not None:
                    handles.append(engine.submit(request))
            while handles and handles[0].finished:
                yield handles.pop(0).results()
            if handles:
                engine.step()
    finally:
        for handle in handles:
            handle.cancel()


def stream(engine: Engine, prompt_ids: Sequence[int], **options: Any) -> Iterator[Piece]:
    """Continue `prompt_ids` piece by piece. Errors in the options are raised here; dropping the iterator cancels."""
    return iter(engine.submit(make_request(prompt_ids, **options)))
