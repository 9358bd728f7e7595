"""weft drift: files, indexes and models in; text, JSON, a page and exit codes out."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Run

QUICK = ("--permutations", "99", "--sample", "40", "--threads", "1")


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str, str]:
    rng = np.random.default_rng(1)
    names = []
    for name, shift in (("a", 0.0), ("b", 0.0), ("c", 1.0)):
        names.append(str(tmp_path / f"{name}.npy"))
        np.save(names[-1], rng.standard_normal((150, 6)).astype("f") + shift)
    return names[0], names[1], names[2]


def test_files_text_json_and_page(run: Run, files: tuple[str, str, str], tmp_path: Path) -> None:
    a, b, c = files
    same = run("drift", a, b, *QUICK)
    assert same.exit_code == 0 and same.stdout.startswith("No drift shown"), same.stdout + same.stderr
    page = tmp_path / "drift.html"
    moved = json.loads(run("drift", a, c, *QUICK, "--json", "--page", str(page)).stdout)
    assert moved["drifted"] and moved["p"] == 0.01 and moved["rows"] == [150, 150] and len(moved["worst"]) == 10
    assert page.read_text(encoding="utf-8").count("<svg") == 3


def test_two_models_over_the_same_texts(run: Run, embedder: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"text number {i} of {i * 7}\n" for i in range(30)), encoding="utf-8")
    found = json.loads(run("drift", str(embedder), str(embedder), "--texts", str(texts), *QUICK, "--json").stdout)
    assert found["paired"] and not found["drifted"] and found["p"] == 1 and found["displacement"]["max"] < 1e-6


def test_what_is_missing_is_said(run: Run, files: tuple[str, str, str]) -> None:
    found = run("drift", files[0], "nowhere.npy")
    assert found.exit_code == 2 and "nowhere.npy does not exist" in found.stderr and "--texts" in found.stderr


def test_watch_prints_signals_and_tells_a_webhook(run: Run, files: tuple[str, str, str], tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        hook = f"http://127.0.0.1:{server.server_address[1]}/"
        found = run(
            "drift",
            "watch",
            files[0],
            files[2],
            "--horizon",
            "50",
            "--webhook",
            hook,
            "--stop-on-drift",
            "--metrics",
            "0",
        )
        server.shutdown()
    signals = [json.loads(line) for line in found.stdout.splitlines()]
    assert found.exit_code == 1 and signals[-1]["state"] == "drift", found.stdout + found.stderr
    assert [one["event"] for one in told] == ["drift"] and told[0]["seen"] == signals[-1]["seen"]
    assert "/metrics" in found.stderr
    lines = tmp_path / "stream.jsonl"
    rows = np.load(files[1])[:32].tolist()
    lines.write_text("".join(json.dumps({"vector": row}) + "\n" for row in rows), encoding="utf-8")
    calm = run("drift", "watch", files[0], str(lines), "--horizon", "50")
    assert calm.exit_code == 0 and [json.loads(line)["state"] for line in calm.stdout.splitlines()] == ["stable"] * 2
    lines.write_text("[1, 2]\nnonsense\n", encoding="utf-8")
    assert run("drift", "watch", files[0], str(lines), "--horizon", "50").exit_code == 2


def test_the_gate_and_its_exit_codes(run: Run, embedder: Path, tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    gate = ("drift", "gate", str(embedder), "--baseline", str(baseline))
    assert run(*gate).exit_code == 3  # no baseline
    assert run(*gate, "--update-baseline").exit_code == 0
    assert run(*gate).exit_code == 0
    kept = json.loads(baseline.read_text(encoding="utf-8"))
    kept["vectors"][0] = [-number for number in kept["vectors"][0]]
    baseline.write_text(json.dumps(kept), encoding="utf-8")
    moved = run(*gate, "--json")
    assert moved.exit_code == 1 and json.loads(moved.stdout)["largest"] == pytest.approx(2, abs=1e-3)
    absent = ("drift", "gate", str(tmp_path / "no-model"), "--baseline", str(baseline))
    assert run(*absent).exit_code == 0 and run(*absent, "--enforce").exit_code == 2
    baseline.write_text("{", encoding="utf-8")
    assert run(*gate).exit_code == 3


def test_align(run: Run, files: tuple[str, str, str], tmp_path: Path) -> None:
    old = np.load(files[0])
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((6, 6)))[0]
    np.save(tmp_path / "new.npy", old @ turn)
    found = run("drift", "align", files[0], str(tmp_path / "new.npy"), "-o", str(tmp_path / "map.npz"), "--json")
    assert json.loads(found.stdout)["recall"] > 0.9 and (tmp_path / "map.npz").is_file()
