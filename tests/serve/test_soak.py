"""Short forms of the long runs in soak.py: nothing leaks, nothing hangs, texts are those of serial runs."""

import soak


def test_many_streams_at_once_are_each_what_they_are_alone(model_files):
    found = soak.streams(model_files, count=80, seconds=2, tokens=10)
    assert found["streams"] >= 80 and found["wrong"] == 0


def test_clients_that_go_leave_nothing_behind(model_files):
    assert soak.disconnects(model_files, count=200)["failures"] == 0


def test_a_crowd_is_served_or_told_to_come_back(model_files):
    few = ["--max-running", "4", "--max-waiting", "8"]
    for connected in (False, True):
        found = soak.crowd(model_files, count=200, tokens=400, options=few, connected=connected)
        statuses = found["statuses"]  # no machine is through with 400 tokens before the last has asked
        assert sum(statuses.values()) == 200 and statuses[200] == 12, found


def test_memory_under_mixed_load_is_looked_at(model_files):
    found = soak.memory(model_files, seconds=3, clients=4)
    assert found["requests"] > 20 and found["rss_last_mb"] < found["rss_first_mb"] + 100


def test_signals_under_load_end_in_order(model_files):
    assert sum(soak.signals(model_files, count=2)["ends"].values()) == 16
