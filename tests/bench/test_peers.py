"""Peers are found, asked and ended: answers are told from noise, errors name the peer, the dead are noticed."""

import sys
from pathlib import Path

import pytest

import weft.bench.itself
from weft.bench import peers as finding
from weft.bench import versus
from weft.bench.measure import summary
from weft.bench.peers import Process, find_peers, here, weft_candidates
from weft.bench.report import Row, table
from weft.errors import BackendError, NotFoundError, UnsupportedError

PYTHON = [sys.executable]
LOAD = {"do": "load", "task": "generate", "model": "m", "threads": 1, "setting": "default", "context": 0, "files": ""}


@pytest.fixture
def fake(peers: Path) -> "Process":
    process = Process(sys.executable, peers / "fake.py", threads=3)
    yield process
    process.close()


def test_a_peer_is_found_with_its_settings_and_a_missing_one_is_named(peers: Path) -> None:
    found, lacking = find_peers("embed", PYTHON, peers)
    assert [(peer.name, peer.setting, peer.kind) for peer in found] == [
        ("Fake", "f32", "f32"),
        ("Fake", "int8", "int8"),
    ]
    assert lacking == [f"Lost: {sys.executable} lacks no-such-package"]
    assert [peer.setting for peer in find_peers("embed", PYTHON, peers, only=["INT8"])[0]] == ["int8"]


def test_on_a_gpu_only_peers_that_compute_there_are_found(peers: Path) -> None:
    found, _ = find_peers("generate", PYTHON, peers, on_gpu=True)
    assert [(peer.name, peer.setting, peer.kind) for peer in found] == [("Fake", "f16 on CUDA", "f16")]
    assert find_peers("embed", PYTHON, peers, on_gpu=True) == ([], [])


def test_weft_is_measured_in_what_the_gpu_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        def supports(self, op: str, dtypes: object) -> bool:
            return op in ("matmul", "matmul_bf16")

    monkeypatch.setattr(finding, "gpu", Device)
    assert [one.setting for one in weft_candidates("embed")] == ["f32", "bf16"]
    assert [one.setting for one in weft_candidates("embed", ["f16"])] == ["f16"]
    with pytest.raises(NotFoundError, match="no peer on a GPU; install torch with transformers"):
        finding.beside("embed", [], None, PYTHON)
    with pytest.raises(UnsupportedError, match="training does not run on a GPU yet; leave out --device"):
        finding.beside("train", [], None, PYTHON)


def test_a_folder_without_peers_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="holds no peers"):
        find_peers("embed", PYTHON, tmp_path)


def test_an_interpreter_that_does_not_exist_is_an_error(peers: Path) -> None:
    with pytest.raises(NotFoundError, match="cannot be started"):
        find_peers("embed", [str(peers / "python")], peers)


def test_a_job_is_timed_as_often_as_asked_and_its_result_kept(fake: Process) -> None:
    assert fake.ask(LOAD) == {"about": "generate default 3"}  # and not the noise on standard output
    answer = fake.ask({"do": "decode", "prompt": [1], "tokens": 4, "repeat": 3, "keep": True})
    assert len(answer["seconds"]) == 3 and min(answer["seconds"]) > 0
    assert answer["result"] == [0, 1, 2, 3] and answer["peak_bytes"] > 1 << 20
    assert "result" not in fake.ask({"do": "decode", "prompt": [1], "tokens": 4})


def test_an_error_is_raised_and_the_peer_lives_on(fake: Process) -> None:
    with pytest.raises(BackendError, match="fake failed in 'decode': ValueError: decode before load"):
        fake.ask({"do": "decode", "prompt": [1], "tokens": 4})
    with pytest.raises(BackendError, match="no such export"):
        fake.ask({**LOAD, "files": "broken"})
    assert fake.ask(LOAD)


def test_a_peer_that_dies_is_quoted(fake: Process) -> None:
    fake.ask(LOAD)
    with pytest.raises(BackendError, match=r"ended during 'die' \(exit code 3\); .*: .*last words"):
        fake.ask({"do": "die"})
    with pytest.raises(BackendError, match="ended during"):
        fake.ask(LOAD)


def test_a_peer_that_takes_too_long_is_ended(peers: Path) -> None:
    process = Process(sys.executable, peers / "fake.py")
    process.ask(LOAD)
    process.limit_s = 0.1
    with pytest.raises(BackendError, match="signal 9"):
        process.ask({"do": "decode", "prompt": [], "tokens": 10**7})
    process.close()


def test_weft_itself_answers_as_a_peer_does(generator: Path) -> None:
    (candidate,) = weft_candidates("generate")
    process = candidate.start(1)
    try:
        facts = process.ask({**LOAD, "model": str(generator)})
        jobs = [{"do": "decode", "prompt": [5, 6], "tokens": 6, "keep": True},
                {"do": "prefill", "prompt": [5, 6], "keep": True},
                {"do": "parallel", "prompts": [[5, 6], [7]], "tokens": 6, "keep": True}]  # fmt: skip
        found = [process.ask(job)["result"] for job in jobs]
    finally:
        process.close()
    assert facts["threads"] == 1
    assert found[0] == found[2] and found[1] == found[0][:1] and len(found[0]) == 6
    same = here("generate", "default", model=str(generator), threads=1)
    assert same.ask(jobs[0])["result"] == found[0]


def test_weft_embeds_texts_as_long_as_the_model_takes(embedder: Path) -> None:
    runner = here("embed", "f32", model=str(embedder), threads=1)
    kept = runner.ask({"do": "embed", "texts": ["a cat", "the " * 100], "keep": True})["result"]
    assert kept["shape"] == [2, 24]
    assert versus.agreement(kept, kept) == "1.00000"


@pytest.mark.parametrize("wanted, found, said", [([1, 2, 3], [1, 2, 4], "2/3"), ([1], [1, 9], "1/1"), (None, [1], "")])
def test_agreement_counts_tokens_from_the_start(wanted: object, found: object, said: str) -> None:
    assert versus.agreement(wanted, found) == said


def row(runner: str, kind: str, unit: str, value: float) -> Row:
    return Row("w", runner, kind, unit, summary([value]))


def test_weft_is_compared_with_the_best_of_its_kind() -> None:
    rows = [row("weft f32", "f32", "tokens/s", 10), row("weft bf16", "bf16", "tokens/s", 40),
            row("a f32", "f32", "tokens/s", 5), row("b f32", "f32", "tokens/s", 8),
            row("a bf16", "bf16", "tokens/s", 20), row("a int8", "int8", "tokens/s", 80)]  # fmt: skip
    columns, cells = table(rows)
    said = [line[columns.index("weft is")] for line in cells]
    assert said == ["1.25× the best", "2.00× the best", "2.00×", "1.25×", "2.00×", "0.50×"]


def test_less_is_better_for_times_and_all_kinds_count_where_weft_has_one() -> None:
    rows = [row("weft", "", "ms", 10), row("a bf16", "bf16", "ms", 5), row("b", "", "ms", 40)]
    columns, cells = table(rows)
    assert [line[columns.index("weft is")] for line in cells] == ["0.50× the best", "0.50×", "4.00×"]


def test_the_checkout_s_own_peers_say_what_they_are() -> None:
    """Each file states its constants without importing what it measures."""
    for file in sorted(finding.SCRIPTS.glob("*.py")):
        if not file.stem.startswith(("export", "_")):
            hello = finding._hello(sys.executable, file)
            assert hello["name"] and hello["settings"].keys() <= set(weft.bench.itself.SETTINGS)
            assert hello["gpu"].keys() <= hello["settings"].keys()
