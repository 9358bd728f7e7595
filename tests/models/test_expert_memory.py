"""Experts that do not fit into memory: those used last stay in it, within a budget, and results are the same."""

import gc
import logging
import subprocess
import sys
from pathlib import Path

import a3b
import numpy as np
import pytest
import tiny
from soaking import SOAK

import weft
from weft.errors import InputError, MemoryPlanError, UnsupportedError
from weft.generate import Engine, Request
from weft.runtime import Decoder, memory, open_checkpoint
from weft.runtime.memory import Experts, FreeMemory, experts_of, plan_experts

LAYERS, CHOSEN = a3b.NARROW["num_hidden_layers"], a3b.NARROW["num_experts_per_tok"]
STACKS = 3 * LAYERS


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a3b.write(tmp_path_factory.mktemp("a3b") / "a3b.gguf", a3b.NARROW, "q8_0")


@pytest.fixture(scope="module")
def sizes(narrow: Path) -> Experts:
    decoder = Decoder(open_checkpoint(narrow), bind=False)
    return experts_of(decoder.checkpoint, decoder.backend, [decoder.prepared])


@pytest.mark.parametrize("compute", ["f32", "int8"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_experts_that_do_not_fit_give_the_same_bits_within_their_budget(
    narrow: Path, sizes: Experts, compute: str, share: float
) -> None:
    """A prompt needs most of a layer's experts at a time, a single token eight of them."""
    ids = tiny.token_ids(a3b.NARROW, 50)
    whole = Decoder(open_checkpoint(narrow), compute=compute).logits(ids)
    budget = max(sizes.least_bytes, int(share * sizes.all_bytes))
    decoder = Decoder(open_checkpoint(narrow), compute=compute, expert_bytes=int(share * sizes.all_bytes))
    for chunk in (50, 7, 1):
        assert np.array_equal(whole, decoder.logits(ids, chunk=chunk))
    counts = decoder.expert_counts
    assert counts["bytes"] <= counts["budget"] <= budget < sizes.all_bytes
    assert counts["misses"] > 0 and counts["hits"] > 0
    assert decoder.info["expert_bytes"] == budget
    assert decoder.memory_plan()["weights"] == decoder.checkpoint.size_bytes - sizes.all_bytes + budget


def test_what_was_used_last_stays_in_memory(narrow: Path, sizes: Experts) -> None:
    """The same tokens again find their experts, if the budget has room for them."""
    decoder = Decoder(open_checkpoint(narrow), expert_bytes=sizes.all_bytes // 2)
    first = decoder.logits([5])
    before = dict(decoder.expert_counts)
    assert before["hits"] == 0 and before["misses"] == before["resident"] == STACKS * CHOSEN
    assert np.array_equal(first, decoder.logits([5]))
    after = decoder.expert_counts
    assert after["misses"] == before["misses"] and after["hits"] == STACKS * CHOSEN


def test_a_batch_of_sixteen_reads_each_of_its_experts_once(narrow: Path, sizes: Experts) -> None:
    """Sixteen sequences in one step share the experts that they choose; one by one each step reads its own."""
    prompts = [tiny.token_ids(a3b.NARROW, 1, seed=seed) for seed in range(16)]
    room = int(0.95 * sizes.all_bytes)  # nothing that these need is ever dropped
    alone = Decoder(open_checkpoint(narrow), expert_bytes=room)
    for prompt in prompts:
        alone.logits(prompt)
    counts = alone.expert_counts
    assert counts["hits"] + counts["misses"] == 16 * STACKS * CHOSEN
    different = counts["misses"]  # matrices of the experts that any of them chose
    engine = Engine(Decoder(open_checkpoint(narrow), expert_bytes=room, kv_tokens=4096))
    for prompt in prompts:
        engine.submit(Request(prompt.tolist(), max_tokens=1))
    while engine.running or engine.waiting:
        engine.step()
    stats = engine.stats()
    assert (stats.expert_hits, stats.expert_misses) == (0, different) and stats.expert_bytes > 0
    assert different < 0.8 * 16 * STACKS * CHOSEN


def test_the_memory_of_experts_may_come_from_the_environment(
    narrow: Path, sizes: Experts, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = sizes.all_bytes // 2
    monkeypatch.setenv("WEFT_EXPERT_MEMORY", str(wanted))
    assert Decoder(open_checkpoint(narrow), bind=False).info["expert_bytes"] == wanted
    monkeypatch.setenv("WEFT_EXPERT_MEMORY", "4Gi")
    assert "expert_bytes" not in Decoder(open_checkpoint(narrow), bind=False).info
    monkeypatch.setenv("WEFT_EXPERT_MEMORY", "half")
    with pytest.raises(InputError, match=r"WEFT_EXPERT_MEMORY.*a size in bytes"):
        Decoder(open_checkpoint(narrow), bind=False).info  # noqa: B018


def free_bytes(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: FreeMemory(count, "available memory of the test"))
    monkeypatch.setattr("weft.runtime.decoder.free_memory", memory.free_memory)


def test_a_budget_is_chosen_where_the_experts_do_not_fit(
    narrow: Path, sizes: Experts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ids = tiny.token_ids(a3b.NARROW, 20)
    whole = Decoder(open_checkpoint(narrow))
    assert "expert_bytes" not in whole.info
    plan = whole.memory_plan()
    left = sizes.all_bytes // 2 + plan["work"] + plan["weights"] - sizes.all_bytes
    free_bytes(monkeypatch, int(left / memory.SHARE))
    with caplog.at_level(logging.WARNING, "weft"):
        decoder = Decoder(open_checkpoint(narrow))
    chosen = decoder.info["expert_bytes"]
    assert sizes.least_bytes <= chosen <= 0.75 * sizes.all_bytes / 2 + 1
    assert "available memory of the test" in decoder.info["expert_reason"]
    assert "experts stay in memory, the others are read" in caplog.text
    assert sum(decoder.memory_plan().values()) <= left
    assert np.array_equal(whole.logits(ids), decoder.logits(ids))
    free_bytes(monkeypatch, plan["weights"] - sizes.all_bytes + plan["work"])  # not even the least of them fits
    with pytest.raises(MemoryPlanError):
        Decoder(open_checkpoint(narrow))


def test_the_plan_for_experts_keeps_room_for_what_the_state_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    free_bytes(monkeypatch, 1000)
    assert plan_experts(500, 10, 100, 200).nbytes is None  # 500 + 100 + 200 of 900
    assert plan_experts(750, 10, 100, 100).nbytes == 600  # three quarters of 800
    assert plan_experts(750, 10, 100, 400).nbytes == 400
    assert plan_experts(750, 50, 100, 790).nbytes == 50
    assert plan_experts(700, 50, 100, 100, asked=60).as_asked
    assert plan_experts(700, 50, 100, 100, asked=700).nbytes is None
    least = plan_experts(700, 50, 100, 100, asked=0)
    assert least.nbytes == 50 and "0 bytes were asked for" in least.reason and not least.as_asked


def test_wrong_sizes_and_files_that_must_be_rearranged_are_refused(narrow: Path, tmp_path: Path) -> None:
    for wrong in (-1, 1.5, "2G"):
        with pytest.raises(InputError, match="expert_bytes"):
            weft.load(str(narrow), expert_bytes=wrong)
    cfg = tiny.CONFIGS["gpt_oss"]
    folder = tiny.write_folder(tmp_path / "gpt_oss", cfg)
    with pytest.raises(UnsupportedError, match="rearranged while they are loaded"):
        Decoder(open_checkpoint(folder), expert_bytes=1)
    assert "expert_bytes" not in Decoder(open_checkpoint(folder)).info
    dense = open_checkpoint(tiny.write_folder(tmp_path / "dense", tiny.LLAMA))
    assert "expert_bytes" not in Decoder(dense, expert_bytes=1).info  # it has none


MEASURE = """
import sys
from pathlib import Path
import numpy as np
from weft.runtime import Decoder, open_checkpoint

def resident() -> int:
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1]) * 1024

path, out, budget, tokens = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
limit = None if budget == "all" else int(budget)
decoder = Decoder(open_checkpoint(path), kv_tokens=1024, threads=2, expert_bytes=limit)
decoder.ready()
before, most = resident(), 0
ids = np.random.default_rng(1).integers(0, decoder.vocab_size, tokens)
logits = [decoder.logits(ids, chunk=256)]
most = max(most, resident())
for first in range(tokens):  # as decoding does: one token a step
    logits.append(decoder.logits(ids[first : first + 1]))
    most = max(most, resident())
np.savez(out, logits=np.concatenate(logits))
print(most - before, *(decoder.expert_counts.get(name, 0) for name in ("hits", "misses", "bytes", "budget")))
"""


def measured(path: Path, out: Path, budget: int | str, tokens: int) -> tuple[list[int], np.ndarray]:
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path), str(out), str(budget), str(tokens)],
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(word) for word in ran.stdout.split()], np.load(out)["logits"]


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["q4_k", "q8_0"])
def test_two_layers_of_a_real_shape_run_within_a_budget(tmp_path: Path, kind: str) -> None:
    """Qwen3-30B-A3B's layers: the process grows by the budget and its working memory, not by the experts."""
    if not SOAK:
        pytest.skip("a file of a gigabyte: `make soak` makes it")
    path = a3b.write(tmp_path / "real.gguf", a3b.REAL, kind)
    gc.collect()
    total = path.stat().st_size
    (_, *_), whole = measured(path, tmp_path / "whole.npz", "all", 64)
    (grown, hits, misses, nbytes, budget), logits = measured(path, tmp_path / "part.npz", int(0.5 * total), 64)
    print(f"\n{kind}: file {total}, budget {budget}, resident {nbytes}, grown {grown}, hits {hits}, misses {misses}")
    assert np.array_equal(whole, logits)
    assert nbytes <= budget <= 0.55 * total and grown <= budget + (160 << 20) and hits > 0
