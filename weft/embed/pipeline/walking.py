"""Which files of a folder are documents, and why the others are left out."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from weft.embed.pipeline.ignoring import Rules, rules_above, rules_in
from weft.embed.pipeline.spool import is_spool
from weft.errors import InputError, NotFoundError
from weft.frozen import frozen

MAX_FILE_BYTES = 16_000_000  # larger files are mostly data, not documents
# Folders that programs fill, by name or by a file in them.
NAMED = {"node_modules": "third-party packages", "__pycache__": "compiled Python"}
ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")
HIDDEN, IGNORED, ENVIRONMENT = "hidden", "ignored by .gitignore", "a virtual environment"
AN_INDEX, UNFINISHED, EMPTY = "an index", "an unfinished run of weft", "empty"
BY_RULE = {HIDDEN, IGNORED, ENVIRONMENT, AN_INDEX, UNFINISHED, EMPTY, *NAMED.values()}  # reasons that need no mending


@frozen
class Selection:
    """Which files of a folder are read: those of at most `max_file_bytes`, and with `all_files` also hidden ones, those
    that .gitignore names, packages, compiled Python and virtual environments."""

    all_files: bool = False
    max_file_bytes: int = MAX_FILE_BYTES

    def __post_init__(self) -> None:
        if type(self.max_file_bytes) is not int or self.max_file_bytes < 1:
            raise InputError(
                "embed", "must be a whole number of at least 1", field="max_file_bytes", given=self.max_file_bytes
            )


class Walk:
    """The regular files below the folder `root`, ordered by name; `left_out` maps the other paths to the reason.

    `root` is absolute, and without links. `outputs` are paths that the run itself writes: they are neither read nor
    listed.
    """

    def __init__(self, root: Path, selection: Selection, outputs: set[Path]) -> None:
        self.files: list[Path] = []
        self.left_out: dict[Path, str] = {}
        self._root, self._all, self._outputs = root, selection.all_files, outputs
        rules: dict[str, Rules | None] = {os.path.dirname(root): None if self._all else rules_above(root)}
        for base, folders, names in os.walk(root, onerror=self._pass_by):
            above = rules[os.path.dirname(base)]
            here = rules[base] = None if self._all else rules_in(Path(base), above)
            folders[:] = sorted(name for name in folders if self._is_kept(Path(base, name), here))
            self.files += [Path(base, name) for name in sorted(names) if self._is_kept(Path(base, name), here)]

    def _is_kept(self, path: Path, rules: Rules | None) -> bool:
        if path in self._outputs:
            return False
        try:
            mode = path.lstat().st_mode
        except OSError:
            return False  # deleted
        why = self._why_not(path, mode, rules)
        if why is not None:
            self.left_out[path] = why
        return why is None

    def _why_not(self, path: Path, mode: int, rules: Rules | None) -> str | None:
        """Why a path is left out, or None."""
        is_folder = stat.S_ISDIR(mode)
        if is_folder and (is_index(path) or is_spool(path)):
            return AN_INDEX if is_index(path) else UNFINISHED
        why = None if self._all else self._by_rule(path, is_folder, rules)
        if why is not None or is_folder or stat.S_ISREG(mode):
            return why
        return "a link" if stat.S_ISLNK(mode) else "not a regular file"

    def _by_rule(self, path: Path, is_folder: bool, rules: Rules | None) -> str | None:
        if path.name.startswith("."):
            return HIDDEN
        if is_folder and path.name in NAMED:
            return NAMED[path.name]
        if is_folder and any((path / mark).exists() for mark in ENVIRONMENT_MARKS):
            return ENVIRONMENT
        return IGNORED if rules is not None and rules.ignore(os.fsencode(path), is_folder) else None

    def _pass_by(self, error: OSError) -> None:
        place = Path(error.filename)
        if place == self._root:
            raise NotFoundError("input", f"cannot read {place}: {error.strerror}") from None
        self.left_out[place] = f"cannot be read: {error.strerror}"


def is_index(folder: Path) -> bool:
    """Whether `weft.Index` saved this folder, by the format name in its header."""
    try:
        with open(folder / "index.json", "rb") as file:
            return b'"weft-index"' in file.read(200)
    except OSError:
        return False
