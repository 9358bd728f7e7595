"""A state has the pages that were asked for, or what the machine can spare, and says why; one context is the least."""

from pathlib import Path

import pytest
import tiny

import weft
from weft.errors import InputError, MemoryPlanError
from weft.runtime import Decoder, memory, open_checkpoint
from weft.runtime.memory import FreeMemory, plan_context, plan_state

PAGE, CONTEXT = 1000, 320  # bytes of a page; ten pages a context


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that are free, to be changed."""
    found = [1 << 40]
    monkeypatch.setattr(memory, "free_memory", lambda: FreeMemory(found[0], "memory of the test"))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_folder(tmp_path_factory.mktemp("tiny") / "llama", tiny.LLAMA)


def test_plenty_of_memory_gives_sixteen_contexts(free: list[int]) -> None:
    plan = plan_state(PAGE, CONTEXT, 0)
    assert (plan.pages, plan.reason) == (160, "16 contexts")


@pytest.mark.parametrize("beside, pages", [(0, 90), (200_000, 40), (320_000, 10), (1 << 50, 10)])
def test_little_memory_gives_a_quarter_of_what_the_model_leaves(free: list[int], beside: int, pages: int) -> None:
    free[0] = 400_000
    plan = plan_state(PAGE, CONTEXT, beside)
    assert plan.pages == pages
    assert plan.reason.startswith("25% of what the model leaves" if pages > 10 else "one context, the least")
    assert "memory of the test" in plan.reason


def test_a_long_context_does_not_count_sixteen_times(free: list[int]) -> None:
    plan = plan_state(PAGE, 40_960, 0)
    assert (plan.pages, plan.reason) == (4096, "131072 tokens")
    assert plan_state(PAGE, 1 << 20, 0).pages == (1 << 20) // 32  # one whole context at least


def test_the_context_is_all_that_the_model_reads_where_it_fits(free: list[int]) -> None:
    plan = plan_context(PAGE, 131_072, 0)
    assert (plan.tokens, plan.reason) == (131_072, "all that the model reads")
    free[0] = 4_000_000  # half of 90 % holds 1,800 pages
    plan = plan_context(PAGE, 131_072, 0)
    assert plan.tokens == 1800 * 32 and "50%" in plan.reason and "the model reads 131072" in plan.reason
    assert plan_context(PAGE, 131_072, 1_600_000).tokens == 1000 * 32
    assert plan_context(PAGE, 8_192, 1_600_000).reason == "all that the model reads"
    with pytest.raises(MemoryPlanError, match="not even a context of 2048 tokens fits"):
        plan_context(PAGE, 131_072, 3_599_000)
    assert plan_context(PAGE, 64, 3_590_000).tokens == 64  # a model that reads less


def test_the_context_follows_what_was_asked_for(free: list[int]) -> None:
    free[0] = 0
    assert plan_context(PAGE, 131_072, 0, asked=300).tokens == 300
    assert plan_context(PAGE, 131_072, 0, kv_tokens=5_000).tokens == 5_000
    assert plan_context(PAGE, 4_096, 0, kv_tokens=5_000).tokens == 4_096
    assert plan_context(PAGE, 131_072, 0, kv_bytes=100_000).tokens == 3_200
    free[0] = memory.UNKNOWN
    assert plan_context(PAGE, 131_072, 0).tokens == 32_768


def test_a_context_can_be_set_for_all_models(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = Decoder(open_checkpoint(folder), bind=False).max_context
    monkeypatch.setenv("WEFT_CONTEXT", "48")
    assert Decoder(open_checkpoint(folder), bind=False).max_context == 48
    assert Decoder(open_checkpoint(folder), context=64, bind=False).max_context == 64
    monkeypatch.setenv("WEFT_CONTEXT", str(10 * most))
    assert Decoder(open_checkpoint(folder), bind=False).max_context == most


def test_a_long_context_takes_no_memory_until_it_is_used(tmp_path: Path) -> None:
    """Positions beyond the old default of 8,192 are read without being asked for, and pages are touched when used."""
    long = tiny.write_folder(tmp_path / "long", {**tiny.LLAMA, "max_position_embeddings": 1 << 20})
    before = resident_bytes()
    model = weft.load(str(long), threads=1)
    assert model.info["context"] > 8_192 and model.info["kv_bytes"] > 64 << 20
    assert model.info["context_reason"]
    model.generate([1, 2, 3], max_tokens=3)
    assert resident_bytes() - before < model.info["kv_bytes"] / 4


def resident_bytes() -> int:
    pages = Path("/proc/self/statm")
    if not pages.exists():
        pytest.skip("no /proc")
    return int(pages.read_text().split()[1]) * 4096


def test_unknown_memory_gives_two_contexts(free: list[int]) -> None:
    free[0] = memory.UNKNOWN
    assert plan_state(PAGE, CONTEXT, 0).pages == 20


def test_what_was_asked_for_is_given(free: list[int]) -> None:
    free[0] = 0  # whether it fits is looked at with the rest of the model
    assert plan_state(PAGE, CONTEXT, 0, kv_tokens=3201).pages == 101
    assert plan_state(PAGE, CONTEXT, 0, kv_tokens=1).pages == 10
    assert plan_state(PAGE, CONTEXT, 0, kv_bytes=10_999).pages == 10
    with pytest.raises(MemoryPlanError, match="kv_bytes 9999 hold 288 tokens, one context is 320 and takes 10000"):
        plan_state(PAGE, CONTEXT, 0, kv_bytes=9_999)


@pytest.mark.parametrize("options", [{"kv_tokens": 0}, {"kv_bytes": -1}, {"kv_bytes": 2.5}, {"kv_tokens": True}])
def test_sizes_that_cannot_be_are_named(folder: Path, options: dict) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        Decoder(open_checkpoint(folder), **options)
    with pytest.raises(InputError, match="give one of them"):
        Decoder(open_checkpoint(folder), kv_tokens=100, kv_bytes=1 << 20)


def test_a_model_says_how_large_its_state_is_and_why(folder: Path) -> None:
    asked = weft.load(str(folder), context=64, kv_bytes=1 << 20, kv_dtype="int8").info
    assert asked["kv_dtype"] == "int8" and asked["kv_reason"] == "kv_bytes"
    assert (1 << 20) * 0.9 < asked["kv_bytes"] <= 1 << 20
    own = weft.load(str(folder), context=64).info
    assert (own["kv_tokens"], own["kv_reason"]) == (16 * 64, "16 contexts")


def test_a_model_of_which_not_one_context_fits_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.runtime import decoder

    small = FreeMemory(200_000, "memory of the test")
    for module in (memory, decoder):
        monkeypatch.setattr(module, "free_memory", lambda: small)
    with pytest.raises(MemoryPlanError, match=r"memory of the test is 0\.00 GB"):
        Decoder(open_checkpoint(folder))
