"""Every error weft raises on purpose.

    WeftError
    ├── InputError (ValueError)         what the caller gave: arguments, texts, shapes
    │   ├── TooLongError                more tokens than the model or the plan takes
    │   ├── ShapeError                  operands that do not fit an op
    │   ├── TierError                   codes of one tier where another is wanted
    │   ├── FingerprintError            vectors of another model than those they are to meet
    │   └── InvalidTransitionError      a move that a migration's state does not allow
    ├── ModelError                      what a model's files say
    │   ├── FormatError                 a malformed file: its name, the field, the offset
    │   ├── UnsupportedError            well formed, but not something weft runs: names it
    │   └── WeightError                 a tensor missing, left over, or of the wrong shape or type
    ├── NotFoundError (LookupError)     a model name, file or option that does not exist
    ├── DownloadError (OSError)         the network or the package index
    │   ├── OfflineError                offline mode, and the file is not in the cache
    │   └── ChecksumError               bytes that are not the pinned ones
    ├── MemoryPlanError (MemoryError)   the plan does not fit the machine
    ├── StoreError                      a document store: foreign, damaged, newer, out of reach
    ├── BusyError (RuntimeError)        a queue is full; the same call may succeed later
    │   └── LeaseError                  another process runs the migration, or took it over
    ├── GrammarError (RuntimeError)     a grammar cannot go on: its request ends
    └── BackendError (RuntimeError)     a backend that cannot run what it was given

Messages read `[where] what is wrong: what was given; what to do`. Assertions are for weft's own bugs.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class WeftError(Exception):
    """The root: `except weft.WeftError` catches everything weft raises on purpose."""


class InputError(WeftError, ValueError):
    """What the caller gave cannot be used."""


class TooLongError(InputError):
    """More tokens than fit; `length` and `limit` say how many, `index` in which of several texts."""

    def __init__(self, message: str, *, length: int = 0, limit: int = 0, index: int = 0) -> None:
        super().__init__(message)
        self.length = length
        self.limit = limit
        self.index = index

    def of_text(self, index: int) -> "TooLongError":
        """The same of a text that is number `index` of those the caller gave, where it had another number here."""
        message = str(self).replace(f"text {self.index} ", f"text {index} ", 1)
        return TooLongError(message, length=self.length, limit=self.limit, index=index)


class ShapeError(InputError):
    """Operands that do not fit an op."""


class TierError(InputError):
    """Codes of one tier where those of another are wanted."""


class FingerprintError(InputError):
    """Vectors of another model, or of the same made differently, than those they are to meet."""


class InvalidTransitionError(InputError):
    """A move that a migration's state does not allow."""


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

    def __str__(self) -> str:  # LookupError subclasses may quote their argument
        return str(self.args[0]) if self.args else ""


class DownloadError(WeftError, OSError):
    """A download failed."""


class OfflineError(DownloadError):
    """Offline mode is on and the file is not in the cache."""


class ChecksumError(DownloadError):
    """The bytes are not the pinned ones."""


class MemoryPlanError(WeftError, MemoryError):
    """The plan does not fit the machine."""


class StoreError(WeftError):
    """A document store is foreign, damaged, of a newer version, or out of reach."""


class BusyError(WeftError, RuntimeError):
    """A queue is full; the same call may succeed later."""


class LeaseError(BusyError):
    """Another process runs the migration, until `until` (seconds since 1970) at least, or took it over."""

    def __init__(self, message: str, *, until: float = 0.0) -> None:
        super().__init__(message)
        self.until = until


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
        part, end, what = str(error).removeprefix("[").partition("] ")
        if not end or part == file or ("." in part and part not in kinds):
            raise
        raise type(error)(f"[{file}] {what}" if part in kinds else f"[{file}] {part}: {what}") from error
