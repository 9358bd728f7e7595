"""Where models are stored on this machine: the hub's cache, weft's own cache, safe file names, locks."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from weft import flags
from weft.errors import DownloadError, InputError

_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f\\:*?"<>|]')


def hub_home() -> Path:
    return flags.get("HF_HOME") or flags.cache_home() / "huggingface"


def hub_cache() -> Path:
    """The hub's cache, the folder that holds models--org--name; shared with every other tool that follows it."""
    return flags.get("HF_HUB_CACHE") or flags.get("HUGGINGFACE_HUB_CACHE") or hub_home() / "hub"


def hub_token() -> str | None:
    """The access token from HF_TOKEN or the token file, or None."""
    token, where = flags.get("HF_TOKEN"), "HF_TOKEN"
    if token is None:
        path = flags.get("HF_TOKEN_PATH") or hub_home() / "token"
        where = str(path)
        with suppress(OSError):
            token = path.read_text(encoding="utf-8", errors="replace").strip() or None
    if token is not None and not re.fullmatch(r"[\x21-\x7e]+", token):
        raise InputError("hub", f"the access token in {where} has characters that no token has", advice="set it again")
    return token


def weft_cache(*, create: bool = False) -> Path:
    """weft's own cache; created readable by its owner only."""
    root = flags.cache_folder()
    if create:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    return root


def inside(folder: Path, name: str) -> Path:
    """`folder / name` for a name somebody else chose; refuses every name that could lead out of `folder`.

    Only plain relative names with forward slashes pass: no `..`, no drive or stream colon, no backslash, no control
    character, no part that Windows would rewrite (trailing dot or space).
    """
    parts = PurePosixPath(name).parts
    plain = (
        bool(parts)
        and len(name) <= 512
        and "/".join(parts) == name  # no leading, doubled or trailing slash, no lone dot
        and not _FORBIDDEN.search(name)
        and all(part[-1] not in ". " for part in parts)  # `..` is one of these
    )
    if not plain:
        raise DownloadError("download", "a file name leads outside its folder or is malformed", given=name)
    return folder.joinpath(*parts)


@contextmanager
def lock(path: Path) -> Iterator[bool]:
    """Wait for an exclusive lock between processes and hold it while the block runs; yields False if it failed.

    The lock saves work (the second process finds the file finished), but correctness never depends on it: some network
    file systems grant every lock at once, and some refuse them all.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield False
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        held = False
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
            held = True
        yield held


def check_space(folder: Path, size: int, name: str) -> None:
    """Raise DownloadError unless `size` more bytes fit on the disk of `folder`."""
    import shutil

    free = shutil.disk_usage(folder).free
    if free < size:
        raise DownloadError(
            "download",
            f"{name} needs {size / 1e6:.0f} MB more, and {folder} has {free / 1e6:.0f} MB free",
            advice="make room, or set HF_HUB_CACHE or WEFT_CACHE to a folder on a larger disk",
        )


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
