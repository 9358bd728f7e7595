"""The sampling settings of a request that leaves them unset; the server, the page, the command line and the library
all take them from here.

They come from the first of these that has any; a value that the caller gives always wins:

1. generation_config.json in the model's folder, unless it says `"do_sample": false`;
2. the model's entry in the catalogue, for files that carry no such settings (GGUF);
3. CHAT, weft's own.

They apply to chats everywhere, and to every route of the server. Continuing a raw prompt in the library or with
`weft generate` does not use them: it is greedy unless `temperature` is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.frozen import frozen
from weft.generate.choice.sampling import Sampling
from weft.weights.sources.catalog import SAMPLING

if TYPE_CHECKING:
    from weft.weights.sources.catalog import Entry

CHAT = {"temperature": 0.7, "top_p": 0.9}
OWN = "weft's own: the model states none"


@frozen
class Defaults:
    """`options` are keyword arguments of Sampling; `source` says where they come from."""

    options: Mapping[str, Any]
    source: str

    def __str__(self) -> str:
        """temperature 0.2, top_p 0.9 (the catalogue)"""
        return f"{', '.join(f'{name} {value:g}' for name, value in self.options.items())} ({self.source})"


def model_defaults(generation: Mapping[str, Any], entry: Entry | None) -> Defaults:
    """The settings for a model: `generation` is what generation_config.json holds."""
    stated = {} if generation.get("do_sample") is False else _usable(generation)
    if stated:
        # transformers samples at 1 where a file names other settings and no temperature
        return Defaults({"temperature": 1.0, **stated}, "generation_config.json")
    if entry is not None and entry.sampling:
        return Defaults(dict(entry.sampling), "the catalogue")
    return Defaults(dict(CHAT), OWN)


def _usable(generation: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that Sampling takes; a malformed one is ignored, since the caller did not write the file."""
    found = {}
    for name in SAMPLING:
        try:
            found[name] = getattr(Sampling(**{name: generation[name]}), name)
        except (KeyError, InputError):
            continue
    return found
