"""Comparison with peers: weft and the peers take turns (weft, peer, peer, weft, …); a row of results for each."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from weft.bench.cases import Plan, first_job
from weft.bench.measure import Summary, summary, take_turns
from weft.bench.peers import Candidate, Runner
from weft.bench.report import Row
from weft.bench.roofs import Roofs
from weft.bench.workloads import Workload
from weft.errors import BackendError, NotFoundError

# Thread pools, OpenMP's for one, keep spinning for up to 0.2 s after their last task and would disturb the next runner.
REST_S = 0.3
LOSSES_APART = {"f32": 1e-4, "": 0.02}  # relative, by kind of arithmetic: more is another model, or other texts
Say = Callable[[str], None]


def compare(
    plan: Plan, candidates: Sequence[Candidate], *, rounds: int, files: str, say: Say
) -> tuple[list[Row], dict[str, Any]]:
    """A row for every workload of the plan and candidate that loads; and the versions and remarks of the peers."""
    with opened(plan, candidates, files=files, say=say) as runners:
        rows = [row for workload in plan.workloads for row in measure(workload, runners, rounds, say, plan.roofs)]
        about = {runner.candidate.label: runner.facts.get("about", "") for runner in runners}
        versions = {runner.candidate.name: runner.candidate.versions for runner in runners}
        devices = [runner.facts["device"] for runner in runners if "device" in runner.facts]
    return rows, {"versions": versions, "about": about, **({"device": devices[0]} if devices else {})}


@contextmanager
def opened(plan: Plan, candidates: Sequence[Candidate], *, files: str, say: Say) -> Iterator[list[Runner]]:
    """The candidates that load, each in its own process; `say` gets the reason for each that does not."""
    with ExitStack() as stack:
        runners = []
        for candidate in candidates:
            say(f"loading {candidate.label}")
            process = candidate.start(plan.threads)
            stack.callback(process.close)
            try:
                runners.append(Runner(candidate, process.ask, process.ask(plan.loading(candidate.setting, files))))
            except BackendError as error:
                if candidate.is_weft:
                    raise
                say(f"left out: {error}")
                process.close()
        if all(runner.candidate.is_weft for runner in runners):
            raise NotFoundError("bench", "no peer could load the model", advice="the lines above give the reasons")
        yield runners


def measure(workload: Workload, runners: Sequence[Runner], rounds: int, say: Say, roofs: Roofs) -> list[Row]:
    """A row for each runner: each is warmed up and compared with the first, then has `rounds` turns.

    Roofs are measured before and after.
    """
    answers = [(runner, _checked(workload, runner, say)) for runner in runners]
    runners = [runner for runner, answer in answers if answer is not None]
    results = [answer.get("result") for _, answer in answers if answer is not None]
    if workload.strict:
        _check_same(runners, results)
    ceilings = [workload.ceiling(runner.candidate.kind) if workload.ceiling else None for runner in runners]

    def before(number: int, runner: Runner) -> None:
        say(f"{workload.name}: round {number + 1} of {rounds}, {runner.candidate.label}")
        if len(runners) > 1:
            time.sleep(REST_S)

    found = take_turns(runners, rounds, lambda runner: workload.turn(runner.ask), before)
    if workload.ceiling:
        roofs.again()
        ceilings = [workload.ceiling(runner.candidate.kind) for runner in runners]
    return [
        Row(
            workload=workload.name,
            runner=runner.candidate.label,
            kind=runner.candidate.kind,
            unit=workload.unit,
            result=values,
            share=values.median / ceiling.most if ceiling else None,
            roof=ceiling.name if ceiling else "",
            agreement=agreement(results[0], result) if runner is not runners[0] else "",
        )
        for runner, values, result, ceiling in zip(runners, found, results, ceilings)
    ]


def _checked(workload: Workload, runner: Runner, say: Say) -> dict[str, Any] | None:
    """The answer to the workload's check, which also warms up; None if a peer cannot run it."""
    say(f"{workload.name}: warming up {runner.candidate.label}")
    try:
        return runner.ask(workload.check)
    except BackendError as error:
        if runner.candidate.is_weft:
            raise
        say(f"left out: {error}")
        return None


def agreement(wanted: Any, found: Any) -> str:
    """How close a result is to the first runner's: the number of equal leading tokens, the lowest cosine, or for losses
    the largest relative difference."""
    if wanted is None or found is None:
        return ""
    if isinstance(wanted, list) and wanted and isinstance(wanted[0], float):
        return f"{_apart(wanted, found):.0e}"
    if isinstance(wanted, dict):
        return f"{np.min(_cosines(_array(wanted), _array(found))):.5f}"
    same = next((i for i, (a, b) in enumerate(zip(wanted, found)) if a != b), min(len(wanted), len(found)))
    return f"{same}/{len(wanted)}"


def _apart(wanted: Sequence[float], found: Sequence[float]) -> float:
    return max(abs(a - b) / max(abs(a), 1e-12) for a, b in zip(wanted, found))


def _check_same(runners: Sequence[Runner], losses: Sequence[Any]) -> None:
    """An error if a runner does not train the same number of parameters, or finds another loss of the same lessons."""
    first = runners[0]
    for runner, loss in zip(runners[1:], losses[1:]):
        numbers = [one.facts.get("parameters") for one in (first, runner)]
        if None not in numbers and numbers[0] != numbers[1]:
            what = f"{first.candidate.label} trains {numbers[0]} parameters, {runner.candidate.label} {numbers[1]}"
            raise BackendError("bench", what, advice="give both the same model")
        if _apart(losses[0], loss) > LOSSES_APART.get(runner.candidate.kind, LOSSES_APART[""]):
            what = f"the loss before the first step is {losses[0][0]:.6f} for {first.candidate.label} and "
            what += f"{loss[0]:.6f} for {runner.candidate.label}"
            raise BackendError("bench", what, advice="give both the same weights, and --files exports of this model")


def _array(kept: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(kept["float32"]), "<f4").reshape(kept["shape"])


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.shape != b.shape:
        raise BackendError(
            "bench", f"weft's vectors have shape {a.shape}, the peer's {b.shape}", advice="give both the same model"
        )
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return (a * b).sum(axis=1) / np.maximum(lengths, 1e-12)


def startup(plan: Plan, candidates: Sequence[Candidate], *, rounds: int, files: str, say: Say) -> list[Row]:
    """Time from the start of a process to its first token or vector, and its peak memory until then.

    A first round warms up, so files are in the page cache. Times include starting the interpreter.
    """
    starts = {candidate.label: _Start(plan, candidate, files) for candidate in candidates}
    for label, start in list(starts.items()):
        say(f"startup: warming up {label}")
        try:
            start.milliseconds()
        except BackendError as error:
            if start.candidate.is_weft:
                raise
            say(f"left out: {error}")
            del starts[label]
    members = list(starts.values())

    def before(number: int, start: _Start) -> None:
        say(f"startup: round {number + 1} of {rounds}, {start.candidate.label}")

    times = take_turns(members, rounds, _Start.milliseconds, before)
    rows = [start.row("start", "ms", values) for start, values in zip(members, times)]
    return rows + [start.row("peak memory", "MB", summary(start.megabytes)) for start in members]


def peak_memory(plan: Plan, candidates: Sequence[Candidate], *, files: str, say: Say) -> list[Row]:
    """The peak memory of a new process for each candidate that makes one step of the plan's workload."""
    rows, (workload,) = [], plan.workloads
    for candidate in candidates:
        say(f"{workload.name}: memory of {candidate.label}")
        start = _Start(plan, candidate, files)
        try:
            start.milliseconds()
        except BackendError as error:
            if candidate.is_weft:
                raise
            say(f"left out: {error}")
            continue
        rows.append(start.row(f"{workload.name} memory", "MB", summary(start.megabytes)))
    return rows


class _Start:
    """Starts a candidate in a new process for each measurement, and records its peak memory."""

    def __init__(self, plan: Plan, candidate: Candidate, files: str) -> None:
        self.candidate = candidate
        self.megabytes: list[float] = []
        self._threads = plan.threads
        self._jobs = (plan.loading(candidate.setting, files), first_job(plan))

    def milliseconds(self) -> float:
        before = time.perf_counter()
        process = self.candidate.start(self._threads)
        try:
            answers = [process.ask(job) for job in self._jobs]
            took = time.perf_counter() - before
        finally:
            process.close()
        self.megabytes.append(answers[-1]["peak_bytes"] / 1e6)
        return 1000 * took

    def row(self, workload: str, unit: str, values: Summary) -> Row:
        return Row(workload, self.candidate.label, self.candidate.kind, unit, values)
