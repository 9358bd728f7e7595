"""Reads the cache that all tools of the Hugging Face hub share; nothing here opens a connection.

The layout is the hub's own, so weft and other tools use each other's downloads:

    models--org--name/blobs/<etag>               contents: SHA-256 for large files, git's SHA-1 for small ones
    models--org--name/snapshots/<commit>/<file>  relative links to blobs
    models--org--name/refs/<revision>            the commit of a branch or tag when it was last fetched
"""

import os
import re
from pathlib import Path

from weft.weights.sources import choice
from weft.weights.sources.folders import hub_cache, inside

COMMIT = re.compile(r"[0-9a-f]{40}")


def repo_folder(repo: str) -> Path:
    return hub_cache() / f"models--{repo.replace('/', '--')}"


def local_commit(repo: str, revision: str) -> str | None:
    """The commit of `revision` when this machine last fetched it, or None."""
    if COMMIT.fullmatch(revision):
        return revision
    try:
        commit = inside(repo_folder(repo) / "refs", revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return commit if COMMIT.fullmatch(commit) else None


def snapshot(repo: str, revision: str) -> Path | None:
    """The snapshot folder of `revision`, which may lack files, or None."""
    commit = local_commit(repo, revision)
    folder = repo_folder(repo) / "snapshots" / commit if commit else None
    return folder if folder and folder.is_dir() else None


def files_in(folder: Path, *, depth: int = 16) -> list[str]:
    """Names of the files below `folder`, with forward slashes, sorted; links that lead nowhere are left out."""
    found: list[str] = []
    for base, folders, names in os.walk(folder):
        place = Path(base).relative_to(folder)
        if len(place.parts) >= depth - 1:
            folders.clear()
        found.extend((place / name).as_posix() for name in names if (folder / place / name).is_file())
    return sorted(found)


def cached(repo: str, revision: str, quant: str | None, *, lenient: bool = False) -> tuple[Path, str] | None:
    """What to load and its commit, from this machine alone; None if something is missing.

    `lenient` accepts a snapshot without tokenizer files: other tools may have fetched less than weft would.
    """
    folder = snapshot(repo, revision)
    if folder is None:
        return None
    path = choice.ready(folder, files_in(folder), quant, lenient=lenient)
    return (path, folder.name) if path else None
