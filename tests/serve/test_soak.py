"""Short forms of the long runs in soak.py: nothing leaks, nothing hangs, texts are those of serial runs."""

import pytest
import soak
from soaking import times

pytestmark = pytest.mark.soak


def test_many_streams_at_once_are_each_what_they_are_alone(model_files):
    found = soak.streams(model_files, count=times(512, 60), seconds=times(60, 1), tokens=10)
    assert found["streams"] >= times(512, 60) and found["wrong"] == 0


def test_clients_that_go_leave_nothing_behind(model_files):
    assert soak.disconnects(model_files, count=times(5_000, 100))["failures"] == 0


def test_a_crowd_is_served_or_told_to_come_back(model_files):
    count, few = times(1_000, 100), ["--max-running", "4", "--max-waiting", "8"]
    for connected in (False, True):
        found = soak.crowd(model_files, count=count, tokens=400, options=few, connected=connected)
        statuses = found["statuses"]  # no machine is through with 400 tokens before the last has asked
        assert sum(statuses.values()) == count and statuses[200] == 12, found


def test_slow_senders_keep_nobody_out(model_files):
    found = soak.slow(model_files, count=times(320, 40), seconds=times(30, 2))
    assert found["served"] > 0 and sum(found["statuses"].values()) == times(320, 40)


def test_memory_under_mixed_load_is_looked_at(model_files):
    found = soak.memory(model_files, seconds=times(120, 3), clients=4)
    assert found["requests"] > 20 and found["rss_last_mb"] < found["rss_first_mb"] + 100


def test_signals_under_load_end_in_order(model_files):
    count = times(40, 1)
    assert sum(soak.signals(model_files, count=count)["ends"].values()) == 8 * count
