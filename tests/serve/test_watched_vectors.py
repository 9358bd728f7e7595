"""A server watches the vectors it answers with: quiet while they are as the reference, an alarm when they move."""

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from weft.errors import FormatError, InputError, NotFoundError
from weft.serve.settings import Settings, drift_reference, read_toml
from weft.serve.work.drifting import MOST_WAITING, DriftWatch, Watched
from weft.transport.drift import Detector

RNG = np.random.default_rng(3)
PATIENCE_S = 120  # on a busy machine; a watch takes milliseconds


def traffic(rng: np.random.Generator, count: int, low: int, high: int) -> list[list[int]]:
    """Token ids of random texts over part of the vocabulary."""
    return rng.integers(low, high, (count, 6)).tolist()


def embedded(client: httpx.Client, inputs: list[list[int]]) -> np.ndarray:
    answer = client.post("/v1/embeddings", json={"model": "bert", "input": inputs}, timeout=60)
    assert answer.status_code == 200, answer.text
    return np.array([row["embedding"] for row in answer.json()["data"]], np.float32)


def gauges(client: httpx.Client) -> dict[str, float]:
    text = client.get("/metrics").text
    return {name: float(value) for name, value in re.findall(r"^weft:(drift_\w+(?:\{[^}]*\})?) (\S+)$", text, re.M)}


def seen(client: httpx.Client, count: int) -> dict[str, float]:
    """The gauges once the detector has seen `count` vectors."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := gauges(client))['drift_vectors_seen{model="bert"}'] < count and time.monotonic() < deadline:
        time.sleep(0.02)
    assert found['drift_vectors_seen{model="bert"}'] == count
    return found


@pytest.fixture
def webhook() -> Any:
    told: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None: ...

    listening = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{listening.server_port}/alarm", told
    listening.shutdown()
    listening.server_close()


def test_an_alarm_when_the_traffic_changes(serve: Any, client: httpx.Client, tmp_path: Path, webhook: Any) -> None:
    file, rng = tmp_path / "reference.npy", np.random.default_rng(5)
    np.save(file, embedded(client, traffic(rng, 256, 5, 40)))
    assert not gauges(client)  # that server watches nothing
    url, told = webhook
    running = serve(drift_references=(("bert", file),), drift_webhook=url)
    with httpx.Client(base_url=running.url) as watched:
        before = gauges(watched)
        assert before['drift_state{model="bert",state="warming"}'] == 1 and before['drift_alarm{model="bert"}'] == 0
        for _ in range(10):
            embedded(watched, traffic(rng, 16, 5, 40))
        quiet = seen(watched, 160)
        assert quiet['drift_alarm{model="bert"}'] == 0 and quiet['drift_state{model="bert",state="stable"}'] == 1
        assert quiet['drift_evidence{model="bert"}'] < quiet['drift_alarm_height{model="bert"}']
        assert quiet['drift_divergence{model="bert"}'] >= 0 and 0 < quiet['drift_last_p{model="bert"}'] <= 1
        assert not told
        embedded(watched, traffic(rng, 160, 40, 60))
        loud = seen(watched, 320)
        assert loud['drift_alarm{model="bert"}'] == 1 and loud['drift_state{model="bert",state="drift"}'] == 1
        assert loud['drift_divergence{model="bert"}'] > quiet['drift_divergence{model="bert"}']
        deadline = time.monotonic() + PATIENCE_S
        while not told and time.monotonic() < deadline:
            time.sleep(0.02)
        (alarm,) = told  # one for the whole alarm
        assert alarm["event"] == alarm["state"] == "drift" and alarm["model"] == "bert" and alarm["seen"] <= 320


def test_vectors_are_left_out_rather_than_piled_up() -> None:
    watch = DriftWatch({"m": Watched(Detector(RNG.standard_normal((128, 4))), 4)})
    for _ in range(3):
        watch.offer("m", np.zeros((MOST_WAITING // 2 + 1, 4), np.float32))
    watch.offer("other", np.zeros((1, 4), np.float32))
    assert sum(len(vectors) for _, vectors in watch._waiting) == MOST_WAITING
    assert watch.gauges()["drift_vectors_left_out", (("model", "m"),)] == MOST_WAITING // 2 + 3


def test_vectors_of_another_length_or_without_numbers_do_not_end_the_watch() -> None:
    watch = DriftWatch({"m": Watched(Detector(RNG.standard_normal((128, 4))), 4)})
    wrong = np.full((1, 4), np.nan, np.float32)
    watch._observe([("m", np.zeros((2, 5), np.float32)), ("m", wrong), ("m", np.ones((1, 4), np.float32))])
    found = watch.gauges()
    assert found["drift_vectors_seen", (("model", "m"),)] == 1
    assert found["drift_vectors_left_out", (("model", "m"),)] == 1


def test_what_is_refused(serve: Any, tmp_path: Path) -> None:
    good, flat, text = tmp_path / "good.npy", tmp_path / "flat.npy", tmp_path / "text.npy"
    np.save(good, RNG.standard_normal((200, 8)))
    np.save(flat, np.zeros(9))
    text.write_text("no array")
    for references, error, said in (
        ((("", tmp_path / "absent.npy"), ), NotFoundError, "weft embed"),
        ((("bert", flat),), FormatError, "vectors"),
        ((("bert", text),), FormatError, "array"),
        ((("tiny", good),), InputError, "no embedding model is called tiny"),
    ):  # fmt: skip
        entries: Any = [type("E", (), {"name": "bert", "kind": "embed"}), type("E", (), {"name": "tiny", "kind": "x"})]
        with pytest.raises(error, match=said):
            DriftWatch.of(Settings(drift_references=references), entries)
    with pytest.raises(InputError, match="write --drift-reference NAME=FILE"):
        DriftWatch.of(Settings(drift_references=(("", good),)), [*entries, entries[0]])
    models = serve().app.serving.settings.models
    for wrong in ({"drift_false_alarms": 1.0}, {"drift_webhook": "example.org"}):
        with pytest.raises(InputError):
            Settings(models=models, **wrong).checked()


def test_settings_of_a_file_and_of_a_command_line(tmp_path: Path) -> None:
    assert drift_reference("m=a.npy") == ("m", Path("a.npy")) and drift_reference("a.npy") == ("", Path("a.npy"))
    file = tmp_path / "weft.toml"
    file.write_text('drift_false_alarms = 0.05\ndrift_webhook = "http://x/"\n[drift_references]\nm = "a.npy"\n')
    found = read_toml(file)
    assert found["drift_references"] == (("m", Path("a.npy")),)
    assert found["drift_false_alarms"] == 0.05 and found["drift_webhook"] == "http://x/"
