"""A state has the pages that were asked for, or what the machine can spare, and says why; one context is the least."""

from pathlib import Path

import pytest
import tiny

import weft
from weft.errors import InputError, MemoryPlanError
from weft.runtime import Decoder, memory, open_checkpoint
from weft.runtime.memory import FreeMemory, plan_state

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
