"""What is on disk: checkpoints as mapped tensors, their formats and their names; and finding models."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.weights.local import LocalModel as LocalModel
    from weft.weights.local import list_local as list_local
    from weft.weights.resolve import Located as Located
    from weft.weights.resolve import locate as locate
    from weft.weights.resolve import pull as pull

_HOMES = {"LocalModel": "local", "list_local": "local", "Located": "resolve", "locate": "resolve", "pull": "resolve"}


def __getattr__(name: str) -> Any:
    """Finding models is imported when it is first used: a reader of one file does not pay for it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
