"""The process in which an engine is measured: it reads one JSON job per line and answers each with a JSON line.

    python worker.py FILE          FILE defines the peer: constants NAME, PACKAGES, SETTINGS, GPU, and a class Peer

It runs in the peer's interpreter, which may lack weft, so it uses the standard library only. Jobs:

    {"do": "hello"}                                         name, settings, those on a GPU, versions, missing packages
    {"do": "load", "task": "generate", "model": …, …}       keyword arguments of Peer.load; once per process
    {"do": "decode", "repeat": 3, "keep": true, …}          any other method of Peer, timed; the rest are its arguments

The answer to a timed job is {"seconds": […], "peak_bytes": …}; with "keep", also the result of the method: a list as it
is, an array of float32 as base64. The answer to a job that failed is {"error": …}; further jobs may follow.
"""

import base64
import importlib.util
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, TextIO

RESERVED = ("do", "repeat", "keep")


def open_peer(path: str) -> ModuleType:
    """Import a file by its path."""
    spec = importlib.util.spec_from_file_location("measured_peer", path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Worker:
    """Answers jobs with the peer of a module."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._peer: Any = None

    def answer(self, job: dict[str, Any]) -> dict[str, Any]:
        do = job["do"]
        if do == "hello":
            return self._hello()
        arguments = {name: value for name, value in job.items() if name not in RESERVED}
        if do == "load":
            self._peer = self._module.Peer()
            return self._peer.load(**arguments) or {}
        if self._peer is None:
            raise ValueError(f"{do} before load")
        return self._timed(getattr(self._peer, do), arguments, int(job.get("repeat", 1)), bool(job.get("keep")))

    def _hello(self) -> dict[str, Any]:
        found, missing = {}, []
        for module, package in self._module.PACKAGES.items():
            if importlib.util.find_spec(module) is None:
                missing.append(package)
            else:
                found[package] = _version(package)
        settings = {"settings": self._module.SETTINGS, "gpu": getattr(self._module, "GPU", {})}
        return {"name": self._module.NAME, "versions": found, "missing": missing, **settings}

    def _timed(self, method: Callable[..., Any], arguments: dict[str, Any], repeat: int, keep: bool) -> dict[str, Any]:
        seconds, result = [], None
        for _ in range(repeat):
            before = time.perf_counter()
            result = method(**arguments)
            seconds.append(time.perf_counter() - before)
        kept = {"result": _as_json(result)} if keep and result is not None else {}
        return {"seconds": seconds, "peak_bytes": peak_bytes(), **kept}


def _as_json(result: Any) -> Any:
    if hasattr(result, "tobytes"):  # an array, float32 [rows, columns]
        data = base64.b64encode(result.tobytes()).decode("ascii")
        return {"float32": data, "shape": list(result.shape)}
    return list(result)


def _version(package: str) -> str:
    import importlib.metadata  # imported late: it brings e-mail, sockets and archives, which would slow down a start

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def peak_bytes() -> int:
    """The peak memory of this process in bytes.

    ru_maxrss starts with the parent's memory at the fork, so it is used only where /proc is missing.
    """
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def serve(worker: Worker, jobs: TextIO, answers: TextIO) -> None:
    """Answer jobs until there are no more."""
    for line in jobs:
        try:
            answer = worker.answer(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    sys.path.pop(0)  # this folder: a peer must not import weft's modules from it
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    try:
        serve(Worker(open_peer(sys.argv[1])), sys.stdin, answers)
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(130)


if __name__ == "__main__":
    main()
