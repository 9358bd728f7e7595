"""Runs of training over HTTP: started, watched, stopped, resumed, compared with the base, and deleted."""

import json
import os
import signal
import time

import httpx
import pytest
from tiny_chat import write_chat_model

from weft import train
from weft.serve import BackgroundServer, ModelSpec, Settings
from weft.serve.training.runs import parted
from weft.train.measure import Evaluation, together

ROWS = [
    {"messages": [{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": f"it is {i}{i}"}]}
    for i in range(24)
]
SETTINGS = {"lr": 0.01, "batch_tokens": 200, "epochs": 2, "rank": 4}
RUNS = "/v1/training/runs"
PATIENCE_S = 120
LONG = 150  # epochs: some seconds, in which a run can be stopped


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    return write_chat_model(tmp_path_factory.mktemp("chatty") / "tiny.gguf")


@pytest.fixture
def training(chatty, tmp_path):
    specs = (ModelSpec("tiny", str(chatty), {"threads": 1}),)
    settings = Settings(models=specs, port=0, training_dir=tmp_path / "runs", registry=tmp_path / "registry")
    with BackgroundServer(settings) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def body(name="first", **given):
    return {"name": name, "model": "tiny", "rows": ROWS, "held_out": 0.2, "settings": SETTINGS, **given}


def until(client, name, *states, steps=0):
    """The run once it is in one of the states, or has so many steps."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        run = client.get(f"{RUNS}/{name}").raise_for_status().json()
        if run["state"] in states or (steps and len(run["steps"]) >= steps):
            return run
        time.sleep(0.05)
    raise AssertionError(f"the run is {run['state']}: {run}")


def refused(response, status, code):
    assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text
    return response.json()["error"]["message"]


def test_a_run_gives_the_adapter_of_the_library(training, chatty, tmp_path):
    started = training.post(RUNS, json=body()).raise_for_status().json()
    assert started["state"] == "running" and started["rows"] + started["held_out"] == len(ROWS)
    refused(training.post(RUNS, json=body("second")), 409, "run_under_way")
    run = until(training, "first", "done", "failed")
    assert run["state"] == "done", run["error"]
    folder = tmp_path / "runs" / "first"
    options = {"rate" if name == "lr" else name: value for name, value in SETTINGS.items()}
    alone = train.lora(
        chatty, folder / "rows.jsonl", valid=folder / "held_out.jsonl", output=tmp_path / "alone", **options
    )
    steps = list(alone)
    assert [step["loss"] for step in run["steps"]] == [step.loss for step in steps]
    assert run["total"] == len(steps) == run["steps"][-1]["steps"]
    ours, theirs = folder / "adapter", tmp_path / "alone"
    name = "adapter_model.safetensors"
    assert (ours / name).read_bytes() == (theirs / name).read_bytes()
    assert [s["number"] for s in training.get(f"{RUNS}/first?after=2").json()["steps"]] == list(
        range(3, len(steps) + 1)
    )

    # On the rows that were held out it is compared with its base.
    assert training.post(f"{RUNS}/first/evaluate").json()["state"] == "evaluating"
    refused(training.delete(f"{RUNS}/first"), 409, "run_under_way")
    found = until(training, "first", "done")["evaluation"]
    held = folder / "held_out.jsonl"
    expected = [together(list(Evaluation(chatty, held, adapter=path))) for path in (None, ours)]
    assert found["base"]["loss"] == pytest.approx(expected[0].loss)
    assert found["adapter"]["loss"] == pytest.approx(expected[1].loss) and expected[1].loss < expected[0].loss

    # It is kept as a version, with what was measured.
    kept = training.post(f"{RUNS}/first/register", json={"as": "support", "version": "1.0.0"}).raise_for_status().json()
    assert (kept["name"], kept["version"], kept["kind"]) == ("support", "1.0.0", "adapter")
    measured = {one["metric"]: one["value"] for one in kept["evaluations"]}
    assert measured["loss"] == found["adapter"]["loss"] and kept["data"]["rows"] == run["rows"]
    assert training.get(f"{RUNS}/first").json()["registered"] == {"name": "support", "version": "1.0.0"}
    assert training.get("/v1/registry/support").json()["versions"][0]["version"] == "1.0.0"
    assert training.post(f"{RUNS}/first/register", json={"version": "one"}).status_code == 400

    # It answers under its own name, and is gone when it is deleted.
    chat = {"model": "first", "messages": ROWS[0]["messages"][:1], "max_tokens": 4, "temperature": 0}
    assert training.post("/v1/chat/completions", json=chat).status_code == 404
    assert training.post(f"{RUNS}/first/load").json()["model"] == "tiny"
    training.post("/v1/chat/completions", json=chat).raise_for_status()
    assert training.delete(f"{RUNS}/first").json()["deleted"]
    assert training.get(RUNS).json() == {"enabled": True, "runs": []}
    assert training.post("/v1/chat/completions", json=chat).status_code == 404
    assert not folder.exists()


def test_a_run_is_stopped_resumed_and_survives_its_server(chatty, tmp_path):
    settings = Settings(models=(ModelSpec("tiny", str(chatty)),), port=0, training_dir=tmp_path / "runs")
    long = {**SETTINGS, "epochs": LONG}
    with BackgroundServer(settings) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        client.post(RUNS, json=body(settings=long)).raise_for_status()
        until(client, "first", steps=3)
        refused(client.post(f"{RUNS}/first/resume"), 409, "run_under_way")
        client.post(f"{RUNS}/first/stop").raise_for_status()
        stopped = until(client, "first", "stopped", "done")
        assert stopped["state"] == "stopped" and len(stopped["steps"]) < stopped["total"]
        refused(client.post(f"{RUNS}/first/stop"), 409, "not_running")
        client.post(f"{RUNS}/first/resume").raise_for_status()
        until(client, "first", steps=len(stopped["steps"]) + 2)
    # The server saved the run when it ended.
    with BackgroundServer(settings) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        assert client.get(RUNS).json()["runs"][0]["state"] == "stopped"
        client.post(f"{RUNS}/first/resume").raise_for_status()
        steps = until(client, "first", "done")["steps"]
    assert [step["number"] for step in steps] == list(range(1, steps[-1]["steps"] + 1))
    alone = train.lora(
        chatty,
        tmp_path / "runs/first/rows.jsonl",
        valid=tmp_path / "runs/first/held_out.jsonl",
        rate=0.01,
        batch_tokens=200,
        epochs=LONG,
        rank=4,
    )
    assert [step.loss for step in alone] == [step["loss"] for step in steps]


def test_a_killed_run_is_not_taken_for_running(training, tmp_path):
    training.post(RUNS, json=body(settings={**SETTINGS, "epochs": 10 * LONG})).raise_for_status()
    until(training, "first", steps=2)
    os.kill(int((tmp_path / "runs/first/pid").read_text()), signal.SIGKILL)
    run = until(training, "first", "failed", "stopped")
    assert run["state"] == "failed" and len(run["steps"]) >= 2  # it was killed before its first save
    training.post(f"{RUNS}/first/resume").raise_for_status()  # so it begins again
    until(training, "first", steps=2)


def test_what_is_wrong_is_said(training):
    message = refused(training.post(RUNS, json=body(model="none")), 404, "model_not_found")
    assert "none" in message
    for name in ("../x", "", "a/b", ".hidden", "x" * 65):
        assert training.post(RUNS, json=body(name)).status_code == 400
    assert training.post(RUNS, json=body(rows=ROWS[:1])).status_code == 400
    assert training.post(RUNS, json=body(settings={"rank": 0})).status_code == 400
    assert "ranks" in training.post(RUNS, json=body(settings={"ranks": 1})).json()["error"]["message"]
    refused(training.get(f"{RUNS}/nothing"), 404, "run_not_found")
    refused(training.get(f"{RUNS}/..."), 404, "run_not_found")
    assert training.get(f"{RUNS}/..%2F..%2Fetc").status_code == 404
    # A row that weft train refuses: the run fails and says why, without folders of the server.
    training.post(RUNS, json=body("odd", rows=[{"question": "?"}, {"question": "!"}])).raise_for_status()
    run = until(training, "odd", "failed")
    assert "question" in run["error"] and "/runs/" not in run["error"]
    refused(training.post(f"{RUNS}/odd/evaluate"), 409, "not_done")
    refused(training.post(f"{RUNS}/odd/load"), 409, "not_done")
    refused(training.post(RUNS, json=body("odd")), 409, "name_taken")
    assert training.get(f"{RUNS}/odd?after=x").status_code == 400


def test_without_a_folder_nothing_is_trained(client):
    assert client.get(RUNS).json() == {"enabled": False, "runs": []}
    assert "--training-dir" in refused(client.post(RUNS, json=body()), 403, "training_off")


def test_rows_are_held_out_by_their_own_text():
    rows = [json.dumps({"text": f"row {i}"}) for i in range(1000)]
    learnt, held = parted(rows, 0.1)
    assert 60 < len(held) < 140 and sorted(learnt + held) == sorted(rows)
    more = [json.dumps({"text": f"later {i}"}) for i in range(500)]
    assert set(held) <= set(parted(rows + more, 0.1)[1])
    assert parted(rows, 0) == (rows, [])
    assert [len(part) for part in parted(rows[:2], 0.5)] == [1, 1]
