"""Shadow runs: a candidate answers a share of live requests beside the version in production, and is judged.

Servers compare and count; the registry adds their counts up and decides. A candidate that raises, computes something
that is not a number, is too slow or too different fails. Nothing but a whole run within all limits passes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, InvalidTransitionError, NotFoundError
from weft.frozen import frozen
from weft.registry import queries, reference, states
from weft.registry.database import one
from weft.registry.records import MICROSECONDS, read_version

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from weft.registry.database import Database

RUNNING, PASSED, FAILED, STOPPED = "running", "passed", "failed", "stopped"
LOADS = ("model", "adapter", "classifier")  # kinds that answer requests


@frozen
class ShadowLimits:
    """What a candidate must keep to. A difference is 1 - cosine of vectors, the mean change of the log-probability of a
    reply's tokens, the largest change of a label's probability, or that of a score. Samples agree where most tokens or
    the label or the first document are the same, or where vectors differ by at most `max_difference`."""

    share: float = 0.1  # of requests that are sampled
    samples: int = 1000  # after which the run is judged
    min_agreement: float = 0.95  # mean over samples
    max_difference: float = 0.1  # mean over samples
    max_slower_ms: float = 50.0  # mean time of the candidate less that of the baseline
    max_errors: int = 0
    timeout_s: float = 30.0  # of one sample

    def checked(self) -> ShadowLimits:
        ranges = {
            "share": (0.0, 1.0),
            "samples": (1, 10**9),
            "min_agreement": (0.0, 1.0),
            "max_difference": (0.0, math.inf),
            "max_slower_ms": (0.0, math.inf),
            "max_errors": (0, 10**9),
            "timeout_s": (0.001, 3600.0),
        }
        for name, (least, most) in ranges.items():
            value = getattr(self, name)
            kinds = (int,) if isinstance(least, int) else (int, float)
            if type(value) not in kinds or not least <= value <= most or (name == "share" and value == 0):
                wanted = f"must be {'a whole number ' if kinds == (int,) else ''}from {least} to {most}"
                raise InputError("shadow", wanted, field=name, given=value)
        return self


@frozen
class ShadowCounts:
    """Sums over samples; those of several servers are added. A sample with an error has no agreement or difference."""

    samples: int = 0
    errors: int = 0  # it raised, took too long, or could not be loaded
    not_finite: int = 0  # of the errors: NaN or infinity
    skipped: int = 0  # not compared, since samples came faster than they could be
    agreement: float = 0.0
    difference: float = 0.0
    largest_difference: float = 0.0
    baseline_ms: float = 0.0
    candidate_ms: float = 0.0

    def __add__(self, other: ShadowCounts) -> ShadowCounts:
        summed = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return ShadowCounts(**{**summed, "largest_difference": max(self.largest_difference, other.largest_difference)})

    @property
    def compared(self) -> int:
        return self.samples - self.errors

    def mean(self, name: str) -> float:
        value: float = getattr(self, name)
        return value / self.compared if self.compared else 0.0


@frozen
class Shadow:
    """A shadow run as it stands."""

    id: int
    name: str
    alias: str  # whose requests are sampled
    candidate: str
    baseline: str
    limits: ShadowLimits
    counts: ShadowCounts
    verdict: str
    reason: str
    started: float
    ended: float | None

    def as_dict(self) -> dict[str, Any]:
        counts = self.counts
        whole = ("samples", "errors", "not_finite", "skipped")
        return {
            "name": self.name,
            "alias": self.alias,
            "candidate": self.candidate,
            "baseline": self.baseline,
            "verdict": self.verdict,
            "reason": self.reason,
            "limits": asdict(self.limits),
            "counts": {name: getattr(counts, name) for name in whole},
            "measures": {
                "agreement": counts.mean("agreement"),
                "mean_difference": counts.mean("difference"),
                "largest_difference": counts.largest_difference,
                "baseline_ms": counts.mean("baseline_ms"),
                "candidate_ms": counts.mean("candidate_ms"),
            },
            "started": self.started,
            "ended": self.ended,
        }


def verdict(limits: ShadowLimits, counts: ShadowCounts) -> tuple[str, str]:
    """The verdict and its reason. Errors end a run at once; the rest is judged when all samples are in."""
    if counts.not_finite:
        return FAILED, f"{counts.not_finite} of {counts.samples} samples gave numbers that are not finite"
    if counts.errors > limits.max_errors:
        return FAILED, f"{counts.errors} of {counts.samples} samples failed; at most {limits.max_errors} may"
    if counts.samples < limits.samples:
        return RUNNING, f"{counts.samples} of {limits.samples} samples"
    if not counts.compared:
        return FAILED, "no sample could be compared"
    agreement, difference = counts.mean("agreement"), counts.mean("difference")
    slower = counts.mean("candidate_ms") - counts.mean("baseline_ms")
    if not agreement >= limits.min_agreement:  # NaN fails, too
        return FAILED, f"agreement {agreement:.4f} is below {limits.min_agreement:g}"
    if not difference <= limits.max_difference:
        return FAILED, f"mean difference {difference:.4g} is above {limits.max_difference:g}"
    if not slower <= limits.max_slower_ms:
        return FAILED, f"{slower:.1f} ms slower than the baseline; at most {limits.max_slower_ms:g} ms are allowed"
    return PASSED, f"{counts.samples} samples within all limits"


def start(
    database: Database, folder: Path, candidate: str, limits: ShadowLimits, *, alias: str = reference.PRODUCTION
) -> Shadow:
    """Begin a run of a version beside what `alias` of the same name means; servers that follow it take part."""
    limits.checked()
    with database.writing() as connection:
        asked = reference.parse(candidate, default=reference.CANDIDATE)
        found = queries.id_of(connection, asked, folder)
        version = read_version(connection, found)
        baseline = queries.id_of(connection, reference.Reference(asked.name, alias), folder)
        if version.kind not in LOADS:
            raise InputError("shadow", f"{asked.name} is of kind {version.kind}, which answers no requests")
        if found == baseline:
            what = f"{version.reference} is what {alias} means already"
            raise InvalidTransitionError("shadow", what, advice="name another version as the candidate")
        if version.state == states.ARCHIVED:
            raise InvalidTransitionError("shadow", f"{version.reference} is archived and does not load")
        if _row(connection, asked.name, "AND ended IS NULL") is not None:
            advice = f"stop it first: weft registry shadow {asked.name} --stop"
            raise InvalidTransitionError("shadow", f"a shadow run of {asked.name} is under way", advice=advice)
        row = (asked.name, alias, found, baseline, json.dumps(asdict(limits)), json.dumps(asdict(ShadowCounts())))
        query = (
            "INSERT INTO shadows (name, alias, candidate, baseline, limits, counts, verdict, reason, started) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        )
        connection.execute(query, (*row, RUNNING, "", queries.now()))
        queries.note(connection, asked.name, version.version, "shadow started", limits=asdict(limits))
        return _read(connection, asked.name)


def latest(database: Database, folder: Path, name: str) -> Shadow | None:
    """The run that is under way, else the last one; None if there was none."""
    with database.reading() as connection:
        queries.kind_of(connection, reference.checked_name(name), folder)
        return _read(connection, name) if _row(connection, name) is not None else None


def running(database: Database) -> dict[str, Shadow]:
    """The runs under way, by name."""
    with database.reading() as connection:
        names = connection.execute("SELECT name FROM shadows WHERE ended IS NULL").fetchall()
        return {name: _read(connection, name) for (name,) in names}


def stop(database: Database, name: str) -> Shadow:
    """End a run before all samples are in: it has not passed."""
    with database.writing() as connection:
        current = _row(connection, reference.checked_name(name), "AND ended IS NULL")
        if current is None:
            raise NotFoundError("shadow", f"no shadow run of {name} is under way")
        _end(connection, _read(connection, name), STOPPED, "stopped before all samples were in")
        return _read(connection, name)


def add(database: Database, run: int, counts: ShadowCounts) -> Shadow | None:
    """Add a server's counts to a run, and judge it; None if it has ended."""
    with database.writing() as connection:
        row = one(connection, "SELECT name FROM shadows WHERE id = ? AND ended IS NULL", run)
        if row is None:
            return None
        before = _read(connection, row[0])
        summed = before.counts + counts
        connection.execute("UPDATE shadows SET counts = ? WHERE id = ?", (json.dumps(asdict(summed)), run))
        decided, reason = verdict(before.limits, summed)
        if decided == RUNNING:
            connection.execute("UPDATE shadows SET reason = ? WHERE id = ?", (reason, run))
        else:
            _end(connection, replace(before, counts=summed), decided, reason)
        return _read(connection, row[0])


def interrupt(connection: sqlite3.Connection, name: str, alias: str) -> None:
    """End a run whose baseline is replaced: its samples would be of two baselines."""
    if _row(connection, name, "AND ended IS NULL") is not None and (run := _read(connection, name)).alias == alias:
        _end(connection, run, STOPPED, f"{alias} was moved to another version before all samples were in")


def _end(connection: sqlite3.Connection, run: Shadow, decided: str, reason: str) -> None:
    query = "UPDATE shadows SET verdict = ?, reason = ?, ended = ? WHERE id = ?"
    connection.execute(query, (decided, reason, queries.now(), run.id))
    queries.note(connection, run.name, run.candidate, f"shadow {decided}", reason=reason, counts=asdict(run.counts))
    candidate = one(connection, "SELECT candidate FROM shadows WHERE id = ?", run.id)
    assert candidate is not None
    if decided == PASSED and queries.state_of(connection, candidate[0]) == states.PENDING:
        queries.move_state(connection, candidate[0], states.VALIDATED)


_COLUMNS = (
    "shadows.id, shadows.name, alias, c.version, b.version, limits, counts, verdict, reason, started, ended "
    "FROM shadows JOIN versions AS c ON c.id = candidate JOIN versions AS b ON b.id = baseline"
)


def _row(connection: sqlite3.Connection, name: str, more: str = "") -> tuple[Any, ...] | None:
    return one(connection, f"SELECT {_COLUMNS} WHERE shadows.name = ? {more} ORDER BY shadows.id DESC LIMIT 1", name)


def _read(connection: sqlite3.Connection, name: str) -> Shadow:
    row = _row(connection, name)
    assert row is not None
    *about, limits, counts, decided, reason, started, ended = row
    return Shadow(
        **dict(zip(("id", "name", "alias", "candidate", "baseline"), about)),
        limits=ShadowLimits(**json.loads(limits)),
        counts=ShadowCounts(**json.loads(counts)),
        verdict=decided,
        reason=reason,
        started=started / MICROSECONDS,
        ended=None if ended is None else ended / MICROSECONDS,
    )


def limits_of(given: Mapping[str, Any]) -> ShadowLimits:
    """Limits from options of which some are None: those have their defaults."""
    return ShadowLimits(**{name: value for name, value in given.items() if value is not None}).checked()
