"""The name of a model as a store keeps it: with the options it was loaded with, so that it can be loaded again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.computes import AUTO
from weft.embed.remote import Server, allowed
from weft.errors import InputError, NotFoundError

if TYPE_CHECKING:
    from weft.embed.base import BaseEmbedder

# Options are part of the name where they differ from these.
LOCAL: dict[str, Any] = {"compute": "f32", "truncate": "error", "pooling": None, "dimensions": None}
DEFAULTS: dict[str, Any] = {**LOCAL, "base_url": None}
REMOTE = ("base_url", "dimensions")  # the options of a model on a server


def named_with(model: str, **given: Any) -> str:
    """A model and its options as typed on the command line, without options that have their default.

    A path is made absolute, so that it is valid in every folder. A name of the catalogue comes before a folder of the
    same name, as in `weft.weights.sources.locate`.
    """
    from weft.weights.sources import catalog

    chosen = {name: value for name, value in given.items() if value != DEFAULTS[name]}
    if "base_url" in chosen:
        if wrong := next((name for name in chosen if name not in REMOTE), None):
            raise InputError(
                "migrate", "works for models on this machine only; leave it out with --base-url", field=f"--{wrong}"
            )
        chosen["base_url"] = chosen["base_url"].rstrip("/")
    elif catalog.find(model) is None and (place := Path(model).expanduser()).exists():
        model = str(place.resolve())
    return model + "".join(f" --{name.replace('_', '-')} {value}" for name, value in chosen.items())


def parts_of(named: str) -> tuple[str, dict[str, Any]]:
    """The model and the options of a name."""
    names = "|".join(DEFAULTS).replace("_", "-")
    parts = re.fullmatch(rf"(.+?)((?: --(?:{names}) \S+)*)", named, re.DOTALL)
    if parts is None:
        raise NotFoundError(
            "migrate",
            "the store has no name for its model, so it cannot be loaded",
            advice="use weft.embed.migrate in Python, or migrate to another model",
        )
    found: dict[str, Any] = {name.replace("-", "_"): value for name, value in re.findall(r" --(\S+) (\S+)", parts[2])}
    if "dimensions" in found:
        found["dimensions"] = int(found["dimensions"])
    return parts[1], found


def settled(named: str, embedder: BaseEmbedder) -> str:
    """The name with the compute that "auto" has chosen, so that it is the same wherever the store is opened."""
    model, found = parts_of(named)
    if found.get("compute") != AUTO:
        return named
    return named_with(model, **{**found, "compute": embedder.info["compute"]})


def with_truncation(named: str, truncate: str | None) -> str:
    """The name with this truncation, or unchanged for None."""
    model, found = parts_of(named)
    return named_with(model, **(found if truncate is None else {**found, "truncate": truncate}))


def load_named(
    named: str,
    *,
    threads: int | None = None,
    truncate: str | None = None,
    server: Server | None = None,
    offline: bool | None = None,
) -> BaseEmbedder:
    """Load the embedder of a name, with `truncate` instead of its own if given; only `server` may be connected to."""
    from weft.embed import Embedder

    model, found = parts_of(named)
    url = found.pop("base_url", None)
    if url is not None:
        if truncate not in (None, DEFAULTS["truncate"]):
            raise InputError(
                "migrate", f"works for models on this machine only, and {model} is at {url}", field="--truncate"
            )
        return allowed(server, url, model).ask_for(model, **found)
    given = {"truncate": truncate} if truncate else {}
    return Embedder(model, threads=threads, offline=offline, **{**LOCAL, **found, **given})
