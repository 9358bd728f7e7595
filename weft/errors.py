"""Every error weft raises on purpose.

    WeftError
    ├── InputError (ValueError)         what the caller gave: arguments, texts, shapes
    │   ├── TooLongError                more tokens than the model or the plan takes
    │   ├── ShapeError                  operands that do not fit an op
    │   ├── TierError                   codes of one tier where another is wanted
    │   ├── FingerprintError            vectors of another model than those they are to meet
    │   ├── InvalidTransitionError      a move that the state of a migration or a version does not allow
    │   ├── VersionError                not a semantic version, or one that is taken
    │   └── SkipsError                  a migration skipped too many documents to serve its vectors
    ├── ModelError                      what a model's files say
    │   ├── FormatError                 a malformed file: its name, the field, the offset
    │   ├── UnsupportedError            well formed, but not something weft runs: names it
    │   └── WeightError                 a tensor missing, left over, or of the wrong shape or type
    ├── NotFoundError (LookupError)     a model name, file or option that does not exist
    ├── DownloadError (OSError)         the network or the package index
    │   ├── OfflineError                offline mode, and the file is not in the cache
    │   └── ChecksumError               bytes that are not the pinned ones
    ├── MemoryPlanError (MemoryError)   the plan does not fit the machine
    ├── StoreError                      a document store: damaged, newer, out of reach
    │   └── NotAStoreError              a file or database of another program
    ├── RegistryError                   a registry of versions: damaged, newer, out of reach
    ├── BusyError (RuntimeError)        a queue is full; the same call may succeed later
    │   └── LeaseError                  another process runs the migration, or took it over
    ├── BudgetError (RuntimeError)      the next request might exceed the cost cap
    ├── GrammarError (RuntimeError)     a grammar cannot go on: its request ends
    └── BackendError (RuntimeError)     a backend that cannot run what it was given

An error is data: where it arose, what is wrong, the value given, what to do. `str(error)` renders it, once:
`[where] what: got given; advice`. Code reads the attributes, never the text. Assertions are for weft's own bugs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Same = TypeVar("Same", bound="WeftError")

MISSING: Any = object()  # None is a value that can be given
SHOWN_CHARACTERS = 80  # of the given value


class WeftError(Exception):
    """The root: `except weft.WeftError` catches everything weft raises on purpose.

    where    the part, file or command that found it: "sampling", "config.json"
    what     a sentence; with `field` its predicate: field="temperature", what="must be 0 to 2"
    given    the value at fault, shown shortened; leave it out where `what` has it
    advice   what to do next, as a command or an option where there is one
    field    the argument, option or JSON field at fault
    index    which one of several: field="text", index=3 reads "text 3"
    """

    def __init__(
        self,
        where: str,
        what: str,
        *,
        given: Any = MISSING,
        advice: str | None = None,
        field: str | None = None,
        index: int | None = None,
    ) -> None:
        super().__init__(what)
        self.where = where
        self.what = what
        self.given = given
        self.advice = advice
        self.field = field
        self.index: Any = index  # an int, or None; always an int in a TooLongError

    def __str__(self) -> str:
        subject = "" if self.field is None else self.field if self.index is None else f"{self.field} {self.index}"
        given = "" if self.given is MISSING else f": got {_shortened(self.given)}"
        advice = f"; {self.advice}" if self.advice else ""
        where = f"[{self.where}] " if self.where else ""
        return f"{where}{subject}{' ' if subject else ''}{self.what}{given}{advice}"

    def but(self: Same, **changed: Any) -> Same:
        """A copy with some attributes changed: `error.but(field="row", index=7)`."""
        other = copy.copy(self)
        for name, value in changed.items():
            assert hasattr(self, name), f"{type(self).__name__} has no {name}"
            setattr(other, name, value)
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        kept = {name: value for name, value in vars(self).items() if value is not MISSING}
        return _rebuilt, (type(self), kept)


def _rebuilt(kind: type[WeftError], attributes: dict[str, Any]) -> WeftError:
    error = kind.__new__(kind, attributes["what"])
    vars(error).update({"given": MISSING, **attributes})
    return error


def _shortened(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


class InputError(WeftError, ValueError):
    """What the caller gave cannot be used."""


class TooLongError(InputError):
    """More tokens than fit; `length` and `limit` say how many, `index` in which of several texts."""

    def __init__(self, where: str, what: str, *, length: int = 0, limit: int = 0, **rest: Any) -> None:
        super().__init__(where, what, **{"index": 0, **rest})
        self.length = length
        self.limit = limit


class ShapeError(InputError):
    """Operands that do not fit an op."""


class TierError(InputError):
    """Codes of one tier where those of another are wanted."""


class FingerprintError(InputError):
    """Vectors of another model, or of the same made differently, than those they are to meet."""


class InvalidTransitionError(InputError):
    """A move that the state of a migration, or of a version in the registry, does not allow."""


class VersionError(InputError):
    """Not a semantic version, or one that another version in the registry excludes."""


class SkipsError(InputError):
    """A migration skipped too many documents to serve its vectors."""


class ModelError(WeftError):
    """A model's files are at fault."""


class FormatError(ModelError):
    """A malformed file."""


class UnsupportedError(ModelError):
    """A well-formed file that asks for something weft does not do."""


class WeightError(ModelError):
    """A tensor is missing, left over, or has the wrong shape or type."""


class NotFoundError(WeftError, LookupError):
    """A model, file or option that does not exist."""


class DownloadError(WeftError, OSError):
    """A download failed."""


class OfflineError(DownloadError):
    """Offline mode is on and the file is not in the cache."""


class ChecksumError(DownloadError):
    """The bytes are not the pinned ones."""


class MemoryPlanError(WeftError, MemoryError):
    """The plan does not fit the machine."""


class StoreError(WeftError):
    """A document store is damaged, of a newer version, or out of reach."""


class NotAStoreError(StoreError):
    """A file or database that was opened as a store belongs to another program."""


class RegistryError(WeftError):
    """A registry is damaged, of a newer format, or out of reach."""


class BusyError(WeftError, RuntimeError):
    """A queue is full; the same call may succeed later."""


class LeaseError(BusyError):
    """Another process runs the migration, until `until` (seconds since 1970) at least, or took it over."""

    def __init__(self, where: str, what: str, *, until: float = 0.0, **rest: Any) -> None:
        super().__init__(where, what, **rest)
        self.until = until


class BudgetError(WeftError, RuntimeError):
    """The next request might exceed the cost cap; nothing was sent."""


class GrammarError(WeftError, RuntimeError):
    """A grammar cannot go on: a step is over its limits, or a token was not allowed. The request ends."""


class BackendError(WeftError, RuntimeError):
    """A backend cannot run what it was given."""


@contextmanager
def naming(file: str, *kinds: str) -> Iterator[None]:
    """Let errors about the content of `file` begin with its name.

    What finds them may know only its own part, as `[rope]`: the message becomes `[file] rope: ...`, or `[file] ...` for
    a part that is one of `kinds`. An error that begins with another file's name stays as it is.
    """
    try:
        yield
    except (FormatError, UnsupportedError) as error:
        part = error.where
        if not part or part == file or ("." in part and part not in kinds):
            raise
        if part in kinds:
            raise error.but(where=file) from error
        raise error.but(where=file, what=error.what if error.field else f"{part}: {error.what}") from error
