"""Names of versions: `support@production`, `support@1.2.0`, `support@latest`; elsewhere with `registry:` before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from weft import flags
from weft.errors import InputError
from weft.frozen import frozen

PREFIX = "registry:"
LATEST, PRODUCTION, CANDIDATE = "latest", "production", "candidate"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ALIAS = re.compile(r"[a-z][a-z0-9_-]{0,49}")


@frozen
class Reference:
    """A name, and which of its versions: a version, an alias, or `latest`."""

    name: str
    which: str = PRODUCTION

    def __str__(self) -> str:
        return f"{self.name}@{self.which}"


def parse(text: str, default: str = PRODUCTION) -> Reference:
    """`NAME[@WHICH]`, also after `registry:`."""
    name, at, which = text.removeprefix(PREFIX).partition("@")
    if at and not which:
        advice = "write NAME@1.2.0, NAME@latest or NAME@production"
        raise InputError("registry", "names no version", field="reference", given=text, advice=advice)
    return Reference(checked_name(name), which or default)


def checked_name(name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        advice = "use letters, digits and . _ -, at most 100, the first a letter or digit"
        raise InputError("registry", "is not a name for versions", field="name", given=name, advice=advice)
    return name


def checked_alias(alias: str) -> str:
    """An alias that may be set: `latest` is computed, and a version is not an alias."""
    if not isinstance(alias, str) or not _ALIAS.fullmatch(alias) or alias == LATEST:
        advice = (
            "use small letters, digits, _ and -, the first a letter; not `latest`, which is always the highest version"
        )
        raise InputError("registry", "cannot be an alias", field="alias", given=alias, advice=advice)
    return alias


_chosen: ContextVar[Path | None] = ContextVar("weft registry", default=None)


@contextmanager
def using(folder: Path | None) -> Iterator[None]:
    """Let `registry:` mean this folder while the block runs, in this thread or task; None changes nothing."""
    token = _chosen.set(folder if folder is not None else _chosen.get())
    try:
        yield
    finally:
        _chosen.reset(token)


def default_folder() -> Path:
    """The folder that `using` chose, else WEFT_REGISTRY, else one that emptying a cache does not lose."""
    given: Path | None = _chosen.get() or flags.get("WEFT_REGISTRY")
    return given or Path("~/.local/share/weft/registry").expanduser()
