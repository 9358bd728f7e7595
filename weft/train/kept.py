"""A run on disk: one file that is there at once or not at all, from which a run goes on bit for bit; and its steps.

It names the base, the data and the options, and a run with others is refused with the name of what differs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft import digest
from weft.errors import BackendError, FormatError, InputError, NotFoundError
from weft.weights.files import replacing
from weft.weights.safetensors import open_safetensors, write_safetensors

if TYPE_CHECKING:
    import numpy as np

    from weft.runtime.checkpoint import Checkpoint
    from weft.train.run import StepResult

FILE = "training.safetensors"
STEPS = "steps.jsonl"
VERSION = 1
SAMPLE_BYTES, SAMPLES = 64 << 10, 16  # of a tensor that a digest reads


def base_digest(checkpoint: Checkpoint) -> str:
    """A hash of the base: every tensor's name, type and shape, and 64 kB of its bytes."""
    hashed = sha256()
    for name, tensor in checkpoint.tensors.items():
        data = memoryview(tensor.view.buffer()).cast("B")
        size = SAMPLE_BYTES // SAMPLES
        pieces = [data] if len(data) <= SAMPLE_BYTES else [
            data[start : start + size] for start in digest.spread(len(data), size, SAMPLES)
        ]  # fmt: skip
        digest.add(hashed, f"{name} {tensor.view.dtype} {tensor.view.shape}", *pieces)
    checkpoint.release()
    return hashed.hexdigest()


def keep(folder: Path, tensors: Mapping[str, np.ndarray], facts: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Write the state of a run; what was there before stays until the new file is complete."""
    made = {"version": VERSION, "about": about, "facts": facts}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_safetensors(folder / FILE, tensors, {"weft": json.dumps(made)})


class StepLog:
    """The steps of a run as lines of JSON, each there as soon as its step is done, for whoever watches the run."""

    def __init__(self, folder: Path, history: Iterable[StepResult], steps: int) -> None:
        """Steps of the run that are not in `history` are left out: they are made again."""
        self.path, self.steps = folder / STEPS, steps
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as out:
                out.writelines(map(self._line, history))

    def add(self, step: StepResult) -> None:
        with writing(self.path.parent), self.path.open("ab") as out:
            out.write(self._line(step))

    def _line(self, step: StepResult) -> bytes:
        known = {name: value for name, value in asdict(step).items() if value is not None}
        return json.dumps({**known, "steps": self.steps}).encode() + b"\n"


class Keeping:
    """What every training does: iterate over it, and every element is a step that is done. With `output` its state is
    kept there every so often; at the end `finish` writes what was learnt, and the state goes."""

    run: Any
    base: Any
    learner: Any
    output: Path | None
    save_every: float
    seconds: float = 0.0

    @property
    def title(self) -> str:
        """What kind of training this is, for people."""
        raise NotImplementedError

    def facts(self) -> Iterator[tuple[str, str]]:
        """What is learnt, for people."""
        raise NotImplementedError

    def shown_rows(self, rows: int, tokens: int) -> Iterator[list[tuple[str, bool]]]:
        """The beginning of the first rows: pieces of text, and whether they are learnt."""
        raise NotImplementedError

    def uses(self) -> list[str]:
        """Commands that use what was learnt."""
        raise NotImplementedError

    @property
    def about(self) -> dict[str, Any]:
        """What a run that goes on must have in common with its beginning."""
        raise NotImplementedError

    def write(self) -> None:
        """Write to `output` what was learnt."""
        raise NotImplementedError

    def check_output(self, resume: bool) -> None:
        """InputError where the folder has something else already, or no run to go on with is named."""
        if self.output is None:
            if resume:
                raise InputError("train", "needs the folder of the run", field="resume", advice="give output (-o)")
            return
        if self.output.exists() and not self.output.is_dir():
            raise InputError("train", f"{self.output} is a file", field="output", advice="name a folder")
        if not resume and (self.output / FILE).is_file():
            what = f"{self.output} has a run that has not ended"
            raise InputError("train", what, field="output", advice="go on with --resume, or name another folder")
        if not resume and self.output.is_dir() and any(path.name != STEPS for path in self.output.iterdir()):
            what = f"{self.output} is not empty"
            raise InputError("train", what, field="output", advice="name a new folder, or remove what is there")

    def take_up(self) -> None:
        """Go on with the run that `output` has."""
        assert self.output is not None
        tensors, facts = taken_up(self.output, self.about)
        self.run.restore(tensors, facts)
        self.seconds = facts["seconds"]

    def __iter__(self) -> Iterator[Any]:
        saved = began = time.perf_counter()
        before = self.seconds
        log = None if self.output is None else StepLog(self.output, self.run.history, self.run.steps)
        for step in self.run:
            now = time.perf_counter()
            self.seconds = before + now - began
            if log is not None:
                log.add(step)
            if self.output is not None and now - saved >= self.save_every:
                self.keep()
                saved = time.perf_counter()
            yield step
        self.finish()

    def keep(self) -> None:
        """Write the state to `output`, to go on from it."""
        if self.output is not None:
            tensors, facts = self.run.state()
            keep(self.output, tensors, {**facts, "seconds": self.seconds}, self.about)

    def finish(self) -> None:
        """Write what was learnt and the report, and remove the state: the run has ended."""
        if self.output is None:
            return
        from weft.train.report.files import write_report

        with writing(self.output):
            self.write()
            write_report(self.output, self)
            (self.output / FILE).unlink(missing_ok=True)


class writing:
    """Errors of the disk become one that says how to go on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, OSError) and not isinstance(error, (NotFoundError, BackendError)):
            what = f"cannot write to {self.folder}: {error.strerror or error}"
            advice = "make room or choose another folder; --resume goes on from the last state that was written"
            raise BackendError("train", what, advice=advice) from error


def compute(folder: Path) -> str:
    """The arithmetic that a run began with."""
    return str(_opened(folder)[1]["compute"])


def taken_up(folder: Path, about: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors and facts that `keep` wrote; InputError where the run would not be the same."""
    opened, before, facts = _opened(folder)
    for name, value in json.loads(json.dumps(about)).items():
        if before.get(name) != value:
            raise _other(name, before.get(name), value)
    return {name: view.numpy() for name, view in opened.tensors.items()}, facts


def _opened(folder: Path) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The file, what the run is about, and its facts."""
    path = folder / FILE
    if not path.is_file():
        what = f"{folder} has no run to go on with: there is no {FILE}"
        raise NotFoundError("train", what, advice="leave out --resume, or name the folder of the run")
    opened = open_safetensors(path)
    try:
        found = json.loads(opened.metadata["weft"])
        version, before, facts = found["version"], dict(found["about"]), found["facts"]
    except (KeyError, ValueError, TypeError) as error:
        raise FormatError(FILE, "the file is not a run of weft") from error
    if version != VERSION:
        raise FormatError(
            FILE, f"must be {VERSION}", field="version", given=version, advice="use the weft that wrote it"
        )
    before.setdefault("compute", "f32")  # runs of before the option was there
    return opened, before, facts


def _other(name: str, before: Any, now: Any) -> InputError:
    advice = "give what the run began with, or begin another one in another folder"
    if name in ("base", "data", "valid", "start"):
        shown = {"base": "base model", "data": "data", "valid": "validation data", "start": "adapter to begin with"}[
            name
        ]
        return InputError("train", f"the {shown} is not the one that this run began with", advice=advice)
    what = f"was {before!r} when this run began"
    return InputError("train", what, field=name, given=now, advice=advice)
