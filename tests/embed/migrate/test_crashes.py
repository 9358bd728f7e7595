"""A process that dies at any moment loses nothing acknowledged, mixes no vectors, and costs one batch at most."""

import kill_points
import migrate_soak as soak
import pytest


@pytest.fixture(params=["sqlite", "postgres"])
def trials(request, tmp_path):
    if request.param == "sqlite":
        return soak.SqliteTrials(tmp_path)
    return soak.PostgresTrials(request.getfixturevalue("postgres"))


def test_killed_at_random(trials, tmp_path):
    large = isinstance(trials, soak.SqliteTrials)
    seen = soak.run(trials, tmp_path, count=5 if large else 3, documents=10_000 if large else 1_000, seed=3)
    assert seen["embedded_twice_most"] <= soak.BATCH


@pytest.mark.parametrize("end", [kill_points.ROLLBACK, kill_points.FINISH])
def test_killed_before_some_statements(trials, end):
    """`python tests/embed/migrate/kill_points.py` tries all."""
    assert kill_points.run(trials, end, step=4 if isinstance(trials, soak.SqliteTrials) else 13) > 60
