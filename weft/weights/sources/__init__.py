"""Where models come from: the catalogue, the hub, the package index, and what is cached already."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.weights.sources.catalog import Entry as Entry
    from weft.weights.sources.local import LocalModel as LocalModel
    from weft.weights.sources.local import list_local as list_local
    from weft.weights.sources.resolve import Located as Located
    from weft.weights.sources.resolve import locate as locate
    from weft.weights.sources.resolve import pull as pull

_HOMES = {
    "Entry": "catalog",
    "LocalModel": "local",
    "list_local": "local",
    "Located": "resolve",
    "locate": "resolve",
    "pull": "resolve",
}


def __getattr__(name: str) -> Any:
    """Finding models is imported when it is first used: a reader of one file does not pay for it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
