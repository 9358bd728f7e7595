"""Runs of training on disk, and the processes that make them.

A run is a folder: `run.json` (what it was started with), `rows.jsonl` and `held_out.jsonl`, `adapter` (what `weft
train` writes), `log.txt` (what the process said), `evaluation.json`. The process holds a lock on `log.txt`, which ends
with it however it ends, so that any server can tell whether a run is under way.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft.serve.http.faults import Fault, without_folders

STATE, STEPS, ADAPTER = "training.safetensors", "steps.jsonl", "adapter_config.json"
NICE = 10  # a training leaves the processor to requests
STOP_S = 30.0  # for a step to end when the server stops
ERROR_LINES = 6
SAMPLES = 5  # held-out rows that are shown


class Run:
    """One run. `state` is "running", "stopped", "done" or "failed"."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name
        self.adapter = folder / "adapter"
        self.process: subprocess.Popen[bytes] | None = None  # of this server

    @property
    def about(self) -> dict[str, Any]:
        """What it was started with."""
        found: dict[str, Any] = json.loads((self.folder / "run.json").read_text())
        return found

    @property
    def held_out(self) -> Path | None:
        """The rows that are not learnt."""
        path = self.folder / "held_out.jsonl"
        return path if path.exists() else None

    @property
    def pid(self) -> int | None:
        """The process that makes the run now."""
        if self.process is not None and self.process.poll() is not None:
            self.process = None
        try:
            with (self.folder / "log.txt").open("r+b") as log:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return int((self.folder / "pid").read_text())
        except FileNotFoundError:
            pass
        return None

    @property
    def state(self) -> str:
        if self.pid is not None:
            return "running"
        if (self.adapter / STATE).exists():
            return "stopped"
        return "done" if (self.adapter / ADAPTER).exists() else "failed"

    def steps(self, after: int = 0) -> list[dict[str, Any]]:
        """The steps that are done, from the one after `after`."""
        try:
            lines = (self.adapter / STEPS).read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines[after:] if line.endswith(b"\n")]

    @property
    def error(self) -> str:
        """What the process said last."""
        try:
            lines = (self.folder / "log.txt").read_text(errors="replace").strip().splitlines()
        except FileNotFoundError:
            return ""
        shown = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines[-ERROR_LINES:]]
        return without_folders("\n".join(shown))

    def evaluation(self) -> dict[str, Any] | None:
        """How the base and the adapter do on the held-out rows, once that was measured, or why it failed."""
        try:
            found: dict[str, Any] = json.loads((self.folder / "evaluation.json").read_text())
        except FileNotFoundError:
            return None
        return found

    @property
    def registered(self) -> dict[str, str] | None:
        """The name and the version in the registry under which the adapter was kept last."""
        try:
            found: dict[str, str] = json.loads((self.folder / "registered.json").read_text())
        except FileNotFoundError:
            return None
        return found

    def note_version(self, name: str, version: str) -> None:
        _write(self.folder / "registered.json", json.dumps({"name": name, "version": version}))

    def samples(self) -> list[dict[str, Any]]:
        """The first held-out rows."""
        if self.held_out is None:
            return []
        with self.held_out.open() as lines:
            return [json.loads(line) for _, line in zip(range(SAMPLES), lines)]

    def start(self, *, resume: bool = False) -> None:
        """Start the process, which goes on when the server ends."""
        about = self.about
        command = [*_weft("train", about["kind"]), about["source"], str(self.folder / "rows.jsonl")]
        command += ["-o", str(self.adapter), "--save-every", "15", *(["--resume"] if resume else [])]
        command += ["--valid", str(self.held_out)] if self.held_out is not None else []
        for name, value in about["settings"].items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        with (self.folder / "log.txt").open("wb") as log:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The process inherits the open file and with it the lock.
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(log.fileno(),),
                start_new_session=True,
            )  # fmt: skip
            os.setpriority(os.PRIO_PROCESS, self.process.pid, NICE)
            _write(self.folder / "pid", str(self.process.pid))

    def stop(self, how: int = signal.SIGINT) -> None:
        """Let the process end its step and save."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, how)


class Runs:
    """The runs inside a folder, of which one is under way at a time."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            reason = f"{folder} cannot be used: {error.strerror or error}"
            advice = "give a folder that can be written to"
            raise InputError("serve", reason, field="training_dir", advice=advice) from None
        self.folder = folder.resolve()
        self._known: dict[str, Run] = {}
        self._evaluation: tuple[str, asyncio.Task[None]] | None = None

    @property
    def evaluating(self) -> str | None:
        """The name of the run that is being evaluated."""
        return None if self._evaluation is None or self._evaluation[1].done() else self._evaluation[0]

    def all(self) -> list[Run]:
        """Every run, newest first."""
        found = [self.get(path.name) for path in self.folder.iterdir() if (path / "run.json").is_file()]
        return sorted(found, key=lambda run: run.about["created"], reverse=True)

    def get(self, name: str) -> Run:
        path = self.folder / name
        if path.parent != self.folder or not (path / "run.json").is_file():
            message = f"there is no run {name!r:.80}; GET /v1/training/runs lists them"
            raise Fault(404, message, kind="not_found_error", code="run_not_found")
        return self._known.setdefault(name, Run(path))

    def check_free(self) -> None:
        """A fault if something is under way: two trainings would only slow each other."""
        busy = self.evaluating or next((run.name for run in self.all() if run.pid is not None), None)
        if busy is not None:
            raise Fault(409, f"run {busy} is under way; stop it, or wait until it has ended", code="run_under_way")

    def create(self, name: str, rows: Sequence[Mapping[str, Any]], held_out: float, **about: Any) -> Run:
        """A new run with its rows on disk; not started yet."""
        path = self.folder / name
        if path.exists():
            raise Fault(409, f"there is a run {name!r}; delete it, or choose another name", code="name_taken")
        learnt, kept = parted([json.dumps(row, ensure_ascii=False) for row in rows], held_out)
        path.mkdir(mode=0o700)
        try:
            _write(path / "rows.jsonl", "".join(f"{row}\n" for row in learnt))
            if kept:
                _write(path / "held_out.jsonl", "".join(f"{row}\n" for row in kept))
            made = {**about, "name": name, "rows": len(learnt), "held_out": len(kept), "created": time.time()}
            _write(path / "run.json", json.dumps(made))
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        return self.get(name)

    def delete(self, run: Run) -> None:
        """Remove a run and its adapter from the disk."""
        if run.pid is not None or self.evaluating == run.name:
            raise Fault(409, f"run {run.name} is under way; stop it first", code="run_under_way")
        shutil.rmtree(run.folder)
        self._known.pop(run.name, None)

    def evaluate(self, run: Run) -> None:
        """Begin to measure the base and the adapter on the held-out rows, as `weft eval rows` does."""
        if run.held_out is None:
            raise Fault(409, f"run {run.name} held no rows out to evaluate on", code="nothing_held_out")
        if run.state != "done":
            raise Fault(409, f"run {run.name} has no adapter yet: it is {run.state}", code="not_done")
        self.check_free()
        self._evaluation = run.name, asyncio.ensure_future(self._evaluate(run))

    async def _evaluate(self, run: Run) -> None:
        found: dict[str, Any]
        try:
            found = {"base": await self._measure(run), "adapter": await self._measure(run, run.adapter)}
        except Fault as fault:
            found = {"error": fault.message}
        _write(run.folder / "evaluation.json", json.dumps(found))

    async def _measure(self, run: Run, adapter: Path | None = None) -> dict[str, Any]:
        about = run.about
        command = [*_weft("eval", "rows"), about["source"], str(run.held_out), "--json"]
        command += [] if adapter is None else ["--adapter", str(adapter)]
        for name in ("max_length", "too_long", "loss"):
            if name in about["settings"]:
                command += [f"--{name.replace('_', '-')}", str(about["settings"][name])]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            out, said = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        if process.returncode:
            last = without_folders(said.decode(errors="replace").strip()[-500:])
            raise Fault(500, f"the evaluation failed: {last}", kind="server_error", code="evaluation_failed")
        found: dict[str, Any] = json.loads(out)
        return found

    async def close(self) -> None:
        """Stop what this server started; a run is saved, and another server goes on with it."""
        if self._evaluation is not None:
            self._evaluation[1].cancel()
            await asyncio.gather(self._evaluation[1], return_exceptions=True)
        ours = [run for run in self._known.values() if run.process is not None and run.pid is not None]
        for run in ours:
            run.stop()
        deadline = time.monotonic() + STOP_S
        while any(run.pid is not None for run in ours) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        for run in ours:
            run.stop(signal.SIGKILL)
            if run.process is not None:
                await asyncio.to_thread(run.process.wait)


def parted(rows: Iterable[str], part: float) -> tuple[list[str], list[str]]:
    """Rows to learn and rows to hold out. A row's own text decides, so that it stays where it is when rows are added;
    there is at least one of each, if any shall be held out."""
    ranked = [(int.from_bytes(sha256(row.encode()).digest()[:8], "big") / 2**64, row) for row in rows]
    held = [row for rank, row in ranked if rank < part]
    learnt = [row for rank, row in ranked if rank >= part]
    if part and not held:
        least = min(ranked)[1]
        learnt.remove(least)
        held.append(least)
    if not learnt:
        learnt.append(held.pop())
    return learnt, held


def _write(path: Path, text: str) -> None:
    """A file that is there whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _weft(*words: str) -> list[str]:
    return [sys.executable, "-m", "weft", *words]
