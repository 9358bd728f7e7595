"""Versions of models, adapters, classifiers and indexes: kept, promoted, watched in shadow, rolled back."""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.registry.records import Event as Event
    from weft.registry.records import Lineage as Lineage
    from weft.registry.records import Move as Move
    from weft.registry.records import Version as Version
    from weft.registry.registry import Registry as Registry

_HOMES = {
    "Event": "records",
    "Lineage": "records",
    "Move": "records",
    "Registry": "registry",
    "Version": "records",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
