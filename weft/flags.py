"""Every environment variable weft reads, each with its type, default and a sentence; `weft env` prints this table.

Nothing is read at import: `get` parses the environment at every call, so a test or a program may change a variable
while it runs. A value that does not parse is an error that names the variable, never a silent default.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft.frozen import frozen

YES = ("1", "true", "yes", "on")
NO = ("0", "false", "no", "off", "")
SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
SIZES |= {f"{unit}i": 1 << 10 * power for power, unit in enumerate("kmgt", 1)}


@frozen
class Flag:
    """One variable. `kind` names its parser below; a `secret` value is never printed."""

    name: str
    kind: str
    default: Any
    sentence: str
    secret: bool = False

    @property
    def given(self) -> bool:
        return self.name in os.environ

    def read(self) -> Any:
        """The parsed value, or the default if the variable is not set."""
        text = os.environ.get(self.name)
        return self.default if text is None else PARSERS[self.kind](self.name, text)

    def shown(self) -> str:
        """The value as `weft env` prints it."""
        value = self.read()
        if self.secret:
            return "set" if value else "not set"
        if value is None:
            return ""
        return ",".join(value) if isinstance(value, tuple) else str(value)


def size_bytes(text: str) -> int | None:
    """Bytes from a size such as 4000000000, "4G", "500MB" or "512Mi"; None for what is not a size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?", text.strip().lower())
    return None if found is None else int(float(found[1]) * SIZES[found[2]])


def _refuse(name: str, text: str, wanted: str) -> InputError:
    return InputError("flags", f"must be {wanted}", field=name, given=text, advice="change or unset the variable")


def _switch(name: str, text: str) -> bool:
    word = text.strip().lower()
    if word not in YES + NO:
        raise _refuse(name, text, "1 or 0 (also true/false, yes/no, on/off)")
    return word in YES


def _count(name: str, text: str) -> int | None:
    if not text.strip():
        return None
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise _refuse(name, text, "an integer of at least 1")
    return value


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:  # also refuses nan
        raise _refuse(name, text, "a positive number of seconds")
    return value


def _text(name: str, text: str) -> str | None:
    return text.strip() or None


def _names(name: str, text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _path(name: str, text: str) -> Path | None:
    return Path(os.path.expandvars(text)).expanduser() if text.strip() else None


def _address(name: str, text: str) -> str | None:
    if not text.strip():
        return None
    if not text.startswith(("http://", "https://")):
        raise _refuse(name, text, "an address that starts with http:// or https://")
    return text.strip().rstrip("/")


def _size(name: str, text: str) -> int | None:
    if not text.strip():
        return None
    found = size_bytes(text)
    if found is None:
        raise _refuse(name, text, "a size in bytes, or one such as 500M, 4G or 4Gi")
    return found


def _present(name: str, text: str) -> bool:
    return text != ""  # the rule of NO_COLOR: any non-empty value counts, "0" included


PARSERS: dict[str, Callable[[str, str], Any]] = {
    "switch": _switch,
    "count": _count,
    "seconds": _seconds,
    "text": _text,
    "names": _names,
    "path": _path,
    "address": _address,
    "size": _size,
    "present": _present,
}

FLAGS = (
    Flag(
        "WEFT_ISA", "text", None, "Highest instruction set to use, such as avx2 or scalar; empty means the best here."
    ),
    Flag(
        "WEFT_BACKEND",
        "text",
        "cpu",
        "What runs models: cpu, gpu, gpu:N, auto (a GPU if there is one), or reference (numpy, float64: slow, exact).",
    ),
    Flag(
        "WEFT_THREADS",
        "count",
        None,
        "Worker threads; empty means as many as the affinity mask and the CPU quota allow.",
    ),
    Flag(
        "WEFT_CONTEXT",
        "count",
        None,
        "Longest sequence of a generator in tokens; empty means all that the model reads and the memory allows.",
    ),
    Flag(
        "WEFT_EXPERT_MEMORY",
        "size",
        None,
        "Memory for the experts of a mixture, such as 4G; empty means all of them, or what memory has room for.",
    ),
    Flag(
        "WEFT_GPU_MEMORY",
        "size",
        None,
        "Memory of a GPU that weft may use, such as 8G; empty means what is free, where the driver says it.",
    ),
    Flag("WEFT_WATCH", "names", (), "Names of intermediates to print while a model runs, separated by commas."),
    Flag("WEFT_CACHE", "path", None, "Folder of weft's own cache; empty means $XDG_CACHE_HOME/weft or ~/.cache/weft."),
    Flag(
        "WEFT_REGISTRY", "path", None, "Folder of the registry of versions; empty means ~/.local/share/weft/registry."
    ),
    Flag(
        "WEFT_PROGRAM_CACHE", "switch", True, "Cache the prepared programs of models on disk, so that they load faster."
    ),
    Flag(
        "WEFT_OFFLINE",
        "switch",
        False,
        "Never open a connection or start a downloader; use only files on this machine.",
    ),
    Flag(
        "WEFT_EMBED_DIM",
        "count",
        None,
        "Dimension of vectors, for embedders that allow shorter ones; empty means full length.",
    ),
    Flag("WEFT_DEBUG", "switch", False, "Print the traceback of an error, not only its message."),
    Flag(
        "WEFT_PEER_PYTHON",
        "names",
        (),
        "Python interpreters with other engines for `weft bench vs`, separated by commas.",
    ),
    Flag("WEFT_API_KEY", "text", None, "A server's key: `weft serve` requires it, `weft ps` sends it.", secret=True),
    Flag("WEFT_NO_PROGRESS", "switch", False, "Draw no progress bars."),
    Flag("HF_HUB_OFFLINE", "switch", False, "The hub's own name for offline mode; the same as WEFT_OFFLINE."),
    Flag("TRANSFORMERS_OFFLINE", "switch", False, "An older name for offline mode; the same as WEFT_OFFLINE."),
    Flag("HF_ENDPOINT", "address", "https://huggingface.co", "Address of the hub, or of a mirror with the same API."),
    Flag("HF_TOKEN", "text", None, "Access token for gated and private models on the hub.", secret=True),
    Flag("HF_TOKEN_PATH", "path", None, "File that holds the access token; empty means $HF_HOME/token."),
    Flag("HF_HUB_CACHE", "path", None, "Folder of the hub's cache; empty means $HF_HOME/hub."),
    Flag("HUGGINGFACE_HUB_CACHE", "path", None, "An older name for HF_HUB_CACHE, read after it."),
    Flag("HF_HOME", "path", None, "Folder of the hub's files; empty means $XDG_CACHE_HOME/huggingface."),
    Flag("HF_HUB_DOWNLOAD_TIMEOUT", "seconds", 10.0, "Seconds without a byte after which a download is retried."),
    Flag("HF_HUB_DISABLE_PROGRESS_BARS", "switch", False, "Draw no progress bars; the same as WEFT_NO_PROGRESS."),
    Flag("OPENAI_BASE_URL", "address", None, "The server that RemoteEmbedder calls; empty means OpenAI's."),
    Flag("OPENAI_API_KEY", "text", None, "The key of that server; it is sent to no other.", secret=True),
    Flag("ANTHROPIC_API_KEY", "text", None, "The key that `weft distill` sends to Anthropic's server.", secret=True),
    Flag("GEMINI_API_KEY", "text", None, "The key that `weft distill` sends to Gemini's server.", secret=True),
    Flag("WEFT_TEACHER_KEY", "text", None, "The key that `weft distill` sends to a server at --base-url.", secret=True),
    Flag("REQUESTS_CA_BUNDLE", "path", None, "File of certificates to trust instead of the system's."),
    Flag("XDG_CACHE_HOME", "path", None, "Folder of caches; empty means ~/.cache."),
    Flag("NO_COLOR", "present", False, "Any value: no colours on the terminal."),
)

_BY_NAME = {flag.name: flag for flag in FLAGS}


def all_flags() -> tuple[Flag, ...]:
    """Every flag in the order `weft env` prints them."""
    return FLAGS


def get(name: str) -> Any:
    """The current value of one flag, parsed; a name that is not in the table is weft's own bug (KeyError)."""
    return _BY_NAME[name].read()


def cache_home() -> Path:
    """$XDG_CACHE_HOME or ~/.cache."""
    return get("XDG_CACHE_HOME") or Path(os.path.expanduser("~/.cache"))


def cache_folder() -> Path:
    """The folder of weft's own cache, which may not exist yet."""
    return get("WEFT_CACHE") or cache_home() / "weft"


def offline_reason() -> str | None:
    """The variable that switches offline mode on, or None if the network may be used."""
    for name in ("WEFT_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if get(name):
            return name
    return None


def progress_wanted() -> bool:
    """False if a variable switches progress bars off."""
    return not (get("WEFT_NO_PROGRESS") or get("HF_HUB_DISABLE_PROGRESS_BARS"))
