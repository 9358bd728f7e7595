"""The engines that are measured: weft in this process, or any engine in a worker process (weft/bench/worker.py).

A peer is a file in benchmarks/peers and an interpreter that has the packages it needs. weft never imports a peer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from threading import Timer
from typing import Any

import weft.bench.itself
import weft.bench.worker
from weft.backends import open_backend
from weft.backends.base import Backend
from weft.backends.cpu.backend import fast_at, level_for
from weft.errors import BackendError, NotFoundError, UnsupportedError
from weft.frozen import frozen

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE.parents[1] / "benchmarks" / "peers"
LIMIT_S = 600.0  # for one job, such as loading and compiling a model
PRODUCTS = {"f32": "matmul", "f16": "matmul_half", "bf16": "matmul_bf16"}  # the op of an encoder's arithmetic


class Process:
    """A worker process. `ask` sends a job and waits for its answer; an error in the answer is raised."""

    def __init__(self, python: str, file: Path, threads: int = 1, limit_s: float = LIMIT_S) -> None:
        self.name = file.stem
        self.limit_s = limit_s
        self._said = tempfile.TemporaryFile("w+b")  # noqa: SIM115  # closed with the process
        try:
            self._process = subprocess.Popen(
                [python, str(HERE / "worker.py"), str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env=_environment(threads),
                text=True,
            )
        except OSError as error:
            self._said.close()
            raise NotFoundError(
                "bench", f"{python} cannot be started: {error.strerror}", advice="give another --peer-python"
            ) from None

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        timer = Timer(self.limit_s, self._process.kill)
        timer.daemon = True  # so that an interrupt before `cancel` does not keep this process alive
        timer.start()
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            ending = f"{self.name} ended during {job['do']!r} ({self._ending()})"
            raise BackendError("bench", f"{ending}; the end of its standard error: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BackendError("bench", f"{self.name} failed in {job['do']!r}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Close the job pipe, which ends the process; kill it if it is still there after two seconds."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._said.close()

    def _ending(self) -> str:
        code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = self._said.read().decode("utf-8", "replace").strip().splitlines()
        return " / ".join(lines[-3:])[-400:] or "nothing"


def _environment(threads: int) -> dict[str, str]:
    """The environment of this process, with the same number of threads for every engine and no network.

    Bytecode is written even if PYTHONDONTWRITEBYTECODE is set: installed peers have theirs, and a checkout without it
    would spend the measured start compiling.
    """
    pools = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        **dict.fromkeys(pools, str(threads)),
        "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false",
        "HF_HUB_OFFLINE": "1",
    }


@frozen
class Candidate:
    """An engine with one setting, and what is needed to start it."""

    name: str
    setting: str
    python: str
    file: Path
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.name if self.setting == "default" else f"{self.name} {self.setting}"

    @property
    def kind(self) -> str:
        """The kind of arithmetic, which is compared with the same kind only: f32, f16, bf16, int8, int4 or ""."""
        if self.setting == "bf16x3":  # sums of two bfloat16: about as exact as f32
            return "f32"
        return next((kind for kind in ("f32", "f16", "bf16", "int8", "int4") if self.setting.startswith(kind)), "")

    @property
    def is_weft(self) -> bool:
        return self.name == weft.bench.itself.NAME

    def start(self, threads: int) -> Process:
        return Process(self.python, self.file, threads)


@frozen
class Runner:
    """A loaded engine: `ask` answers jobs, `facts` is the answer to the job that loaded it."""

    candidate: Candidate
    ask: Callable[[dict[str, Any]], dict[str, Any]]
    facts: dict[str, Any]


def gpu() -> Backend | None:
    """The GPU that weft computes on in this process, if it does (WEFT_BACKEND)."""
    backend = open_backend()
    return backend if backend.info["backend"] == "gpu" else None


def weft_candidates(task: str, settings: Sequence[str] = ()) -> list[Candidate]:
    """weft itself with each of the settings (default: all that are not slower than f32 on this machine)."""
    file = Path(weft.bench.itself.__file__)
    wanted = settings or weft.bench.itself.SETTINGS[task]
    device = gpu()
    if not settings and device is not None and task == "embed":
        wanted = [name for name, op in PRODUCTS.items() if device.supports(op, ())]
    elif not settings:
        fast = fast_at(level_for(None))
        slow = ["bf16"] if "f16" in fast else ["f16"]  # arithmetic that is emulated
        slow += ["bf16x3"] if "bf16" not in fast else []  # three products for one, each as slow as in f32
        slow += ["bf16"] if "bf16" not in fast and task == "train" else []
        wanted = [setting for setting in wanted if setting not in slow]
    return [Candidate("weft", setting, sys.executable, file) for setting in wanted]


def find_peers(
    task: str, pythons: Sequence[str], folder: Path = SCRIPTS, only: Sequence[str] = (), *, on_gpu: bool = False
) -> tuple[list[Candidate], list[str]]:
    """The peers that can run `task` in one of the interpreters, on a GPU if weft does, and a sentence about each that
    cannot.

    `only` keeps peers whose name and setting contain one of these words. A peer that several interpreters have runs in
    the first.
    """
    files = sorted(path for path in folder.glob("*.py") if not path.stem.startswith(("export", "_")))
    if not files:
        raise NotFoundError(
            "bench", f"{folder} holds no peers", advice="give the folder benchmarks/peers of a checkout as --peers"
        )
    found: list[Candidate] = []
    lacking: dict[str, str] = {}
    for file in files:
        for python in pythons:
            hello = _hello(python, file)
            settings = hello["gpu" if on_gpu else "settings"].get(task)
            if not settings:
                break
            if hello["missing"]:
                lacking[hello["name"]] = f"{hello['name']}: {python} lacks {', '.join(hello['missing'])}"
                continue
            lacking.pop(hello["name"], None)
            found += [Candidate(hello["name"], setting, python, file, hello["versions"]) for setting in settings]
            break
    wanted = [peer for peer in found if not only or any(word.lower() in peer.label.lower() for word in only)]
    return wanted, list(lacking.values())


def beside(
    task: str, found: Sequence[Candidate], compute: str | None, pythons: Sequence[str], only: Sequence[str] = ()
) -> list[Candidate]:
    """weft, then the peers of this kind of arithmetic, in training those of f32 too; an error that says what to install
    if there is none.

    Memory is measured after speed, so that without a peer for it there is nothing to measure, and no error.
    """
    kinds = {compute, "", "f32" if task == "train" else compute}
    found = [peer for peer in found if compute is None or peer.kind in kinds]
    if not found and task == "train_memory":
        return []
    if not found:
        asked = f" whose name contains {' or '.join(only)}" if only else ""
        usual = "llama-cpp-python, onnxruntime, openvino, ctranslate2 or torch with transformers"
        if gpu() is not None:
            if task == "train":
                raise UnsupportedError("bench", "training does not run on a GPU yet", advice="leave out --device")
            asked, usual = f" on a GPU{asked}", "torch with transformers and sentence-transformers"
        needed = "torch, transformers, peft, gguf and trl" if task == "train" else usual
        raise NotFoundError(
            "bench",
            f"{', '.join(pythons)} has no peer{asked}",
            advice=f"install {needed} there, or name an interpreter that has them with --peer-python",
        )
    itself = weft_candidates(task, [compute or "default"] if task == "generate" else ())
    if compute:  # f32 stays, and comes first: the results of the others are compared with it
        itself = [own for own in itself if own.kind == compute or own.setting == "f32"]
    return [*itself, *found]


def _hello(python: str, file: Path) -> dict[str, Any]:
    process = Process(python, file, limit_s=60)
    try:
        return process.ask({"do": "hello"})
    finally:
        process.close()


def here(task: str, setting: str, **loading: Any) -> Runner:
    """weft in this process."""
    (candidate,) = weft_candidates(task, [setting])
    worker = weft.bench.worker.Worker(weft.bench.itself)
    facts = worker.answer({"do": "load", "task": task, "setting": setting, **loading})
    return Runner(candidate, worker.answer, facts)
