"""A process that dies at any moment loses nothing acknowledged, mixes no vectors, and costs one batch at most."""

import kill_points
import migrate_soak as soak
import pytest
from soaking import times


@pytest.fixture(params=["sqlite", "postgres"])
def trials(request, tmp_path):
    if request.param == "sqlite":
        return soak.SqliteTrials(tmp_path)
    return soak.PostgresTrials(request.getfixturevalue("postgres"))


@pytest.mark.soak
def test_killed_at_random(trials, tmp_path):
    documents = times(10_000, 2_000) if isinstance(trials, soak.SqliteTrials) else 1_000
    seen = soak.run(trials, tmp_path, count=times(50, 3), documents=documents, seed=3)
    assert seen["embedded_twice_most"] <= soak.BATCH


@pytest.mark.soak
@pytest.mark.parametrize("end", [kill_points.ROLLBACK, kill_points.FINISH])
def test_killed_before_some_statements(trials, end):
    """A soak run tries all."""
    assert kill_points.run(trials, end, step=times(1, 13)) > 60
