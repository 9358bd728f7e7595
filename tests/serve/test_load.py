"""`weft bench serve` counts what a server does: every answer, its tokens, and the waits of its readers."""

import json
import subprocess
import sys

from weft.bench import load


def test_a_plan_is_carried_out_and_measured(server):
    found = load.run(server.url, "tiny", load.Plan(rate=200, requests=12, prompt=3, tokens=9))
    assert found.answered == 12 and found.refused == 0 and found.tokens_per_second > 0
    assert 0 < found.first_s[50] <= found.first_s[99] and 0 < found.gap_s[50] <= found.gap_s[99]


def test_long_prompts_come_in_between_and_are_counted_apart(server):
    plain = load.Plan(rate=50, requests=6, prompt=3, tokens=4)
    found = load.run(server.url, "tiny", load.Plan(rate=50, requests=6, prompt=3, tokens=4, long=40, every_s=0.02))
    assert found.answered == 6 and len(found.long_first_s) > 1 and min(found.long_first_s) > 0
    row = found.as_json()
    assert row["long"] == len(found.long_first_s) and row["long_first_token_p50_ms"] > 0
    assert "long" not in load.run(server.url, "tiny", plain).as_json()


def test_percentiles_are_values_that_were_seen():
    assert load.percentiles([3.0, 1.0, 2.0, 4.0], (0, 50, 99)) == {0: 1.0, 50: 3.0, 99: 4.0}
    assert load.percentiles([]) == {50: 0.0, 99: 0.0}


def test_the_command_prints_a_table_and_a_line(server):
    command = [sys.executable, "-m", "weft", "bench", "serve", "--url", server.url, "-m", "tiny", "--rate", "50"]
    made = subprocess.run([*command, "--requests", "4", "--tokens", "5"], capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stderr
    line = json.loads(made.stdout.splitlines()[-1])
    assert line["case"] == "serve" and line["rows"][0]["answered"] == 4 and "first_token_p99_ms" in made.stdout
