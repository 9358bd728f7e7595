"""`--expert-memory` reaches the model, in `generate` and in `serve`, and is shown."""

from pathlib import Path

import a3b
import pytest
from running import Run
from tiny_chat import CONFIG, tokenizer_keys

import weft

TOKENS = {key: CONFIG[key] for key in ("vocab_size", "bos_token_id", "eos_token_id", "max_position_embeddings")}


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cfg = {**a3b.NARROW, **TOKENS, "num_hidden_layers": 2, "num_experts": 32}
    return a3b.write(tmp_path_factory.mktemp("mixture") / "mixture.gguf", cfg, "q8_0", tokenizer_keys())


def test_text_with_few_experts_in_memory_is_the_same(run: Run, mixture: Path) -> None:
    want = run("generate", "-m", str(mixture), "--max-tokens", "12", "one two")
    found = run("generate", "-m", str(mixture), "--max-tokens", "12", "--expert-memory", "0.7M", "one two")
    assert want.exit_code == found.exit_code == 0 and found.stdout == want.stdout
    model = weft.load(str(mixture), expert_bytes=700_000)
    assert model.generate("one two", max_tokens=12).text.rstrip("\n") == want.stdout.rstrip("\n")
    stats = model.engine.stats()
    assert stats.expert_hits > 0 and stats.expert_misses > 0 and stats.expert_bytes <= 700_000
    assert run("generate", "-m", str(mixture), "--expert-memory", "much", "a").exit_code == 2


def test_show_says_how_much_of_the_experts_stays(run: Run, mixture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "stay in memory" not in run("show", str(mixture)).stdout
    monkeypatch.setenv("WEFT_EXPERT_MEMORY", "0.7M")
    shown = " ".join(run("show", str(mixture)).stdout.split())
    assert "experts 700.0 kB of 1.7 MB stay in memory: as asked for (--expert-memory changes it)" in shown


def test_a_server_takes_it_from_the_command_line_and_counts(mixture: Path) -> None:
    pytest.importorskip("starlette")
    import httpx

    from weft.serve import BackgroundServer, ModelSpec, Settings

    spec = ModelSpec("mixture", str(mixture), {"threads": 1, "expert_bytes": 700_000})
    with BackgroundServer(Settings(models=(spec,), port=0)) as server, httpx.Client(base_url=server.url) as client:
        asked = {"model": "mixture", "prompt": "one two", "max_tokens": 4, "temperature": 0}
        assert client.post("/v1/completions", json=asked).status_code == 200
        lines = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if "expert" in line)
    own = '{model="mixture"}'
    assert float(lines[f"weft:expert_hits_total{own}"]) > 0 and float(lines[f"weft:expert_misses_total{own}"]) > 0
    assert 0 < float(lines[f"weft:expert_bytes{own}"]) <= 700_000
