"""Pages of the state are read, written and copied whole, and a fingerprint says where they may be put back."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from test_gguf_models import BLOCKED

from weft import _core
from weft.backends.cpu.backend import level_for, levels_present
from weft.errors import InputError, MemoryPlanError, UnsupportedError
from weft.nn.step import Step
from weft.runtime import PAGE_TOKENS, Decoder, open_checkpoint

IDS = tiny.token_ids(tiny.LLAMA, 50)
# not the one that is used
ANOTHER_LEVEL = next((level for level in levels_present() if level != level_for(None)), "scalar")
KINDS = ("f32", "f16", "bf16", "int8", "int8-plain", "int4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_folder(tmp_path_factory.mktemp("tiny") / "llama", tiny.LLAMA)


def decoder(folder: Path, **options: Any) -> Decoder:
    return Decoder(open_checkpoint(folder), **{"context": 64, "threads": 1, **options})


def step(ids: np.ndarray, first: int, pages: list[int]) -> Step:
    count = np.arange(len(ids), dtype=np.int32)
    segments, table = np.asarray([0, len(ids)], np.int32), np.asarray([pages], np.int32)
    return Step(ids=ids.astype(np.int32), positions=count + np.int32(first), segments=segments, rows=count, pages=table)


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_has_the_same_bits_wherever_it_was_carried(folder: Path, kind: str) -> None:
    here, there = decoder(folder, kv_dtype=kind), decoder(folder, kv_dtype=kind)
    want = here.run(step(IDS, 0, [0, 1]))[PAGE_TOKENS:]
    prompt, rest = here.read_page(0), IDS[PAGE_TOKENS:]
    assert len(prompt) == here.page_bytes
    there.write_page(3, prompt)
    there.copy_page(3, 1)
    assert there.read_page(1) == there.read_page(3) == prompt
    assert not any(there.read_page(0)) and not any(there.read_page(2))  # the neighbours were not touched
    for page in (3, 1):
        assert np.array_equal(there.run(step(rest, PAGE_TOKENS, [page, 2])), want)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compute", ["f32", "bf16"])
def test_a_sequence_has_the_same_bits_in_any_chunks_and_threads(tmp_path: Path, kind: str, compute: str) -> None:
    folder, ids = tiny.write_folder(tmp_path / "blocked", BLOCKED), tiny.token_ids(BLOCKED, 97)
    decoders = [decoder(folder, context=128, kv_dtype=kind, compute=compute, threads=n) for n in (1, 2, 3)]
    want = decoders[0].logits(ids)
    for model in decoders:
        for chunk in (1, 7, 32, 50):
            assert np.array_equal(model.logits(ids, chunk=chunk), want)


@pytest.mark.parametrize(
    "kind, most", [("f16", 1e-3), ("bf16", 1e-2), ("int8", 2e-2), ("int8-plain", 2e-2), ("int4", 0.2)]
)
def test_a_narrower_state_changes_logits_by_its_rounding_alone(folder: Path, kind: str, most: float) -> None:
    want, got = decoder(folder, kv_dtype="f32").logits(IDS), decoder(folder, kv_dtype=kind).logits(IDS)
    assert 0 < np.linalg.norm(got - want) / np.linalg.norm(want) < most


def test_an_int8_state_is_little_more_than_half_of_one_in_f16(tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path / "blocked", BLOCKED)
    narrow, wide = (decoder(folder, kv_dtype=kind) for kind in ("int8", "f16"))
    _, dim = narrow.prepared.states[0].shape
    assert narrow.page_bytes * 2 * dim == wide.page_bytes * (dim + 4)
    least = decoder(folder, kv_dtype="int4")
    assert least.page_bytes * 2 * dim == wide.page_bytes * (-(-dim // 32) * 16 + 4)


@pytest.mark.parametrize("kind", KINDS)
def test_all_pages_are_the_memory_plan(folder: Path, kind: str) -> None:
    model = decoder(folder, kv_dtype=kind)
    assert model.page_bytes * model.pages.count == model.memory_plan()["kv"]
    assert sum(layer.page_bytes for layer in model._states.layers.values()) == model.page_bytes


def test_pages_that_are_not_there_and_other_sizes_are_refused(folder: Path) -> None:
    model = decoder(folder)
    page = model.read_page(0)
    for wrong in (-1, model.pages.count, 1 << 70):
        for call in (model.read_page, lambda n: model.write_page(n, page), lambda n: model.copy_page(0, n)):
            with pytest.raises(InputError, match="pages are 0 to 3"):
                call(wrong)
    for data in (b"", page[:-1], page + b"\0"):
        with pytest.raises(InputError, match=f"a page has {len(page)} bytes: got {len(data)}"):
            model.write_page(0, data)


def test_the_core_checks_pages_by_itself() -> None:
    state = _core.KvState.make("f16", 2, 3, 5)
    assert state.page_bytes == 2 * 3 * 5 * PAGE_TOKENS * 2
    page = bytes(state.page_bytes)
    for wrong in (-1, 2):
        for call in (lambda n: state.read_page(n, bytearray(page)), lambda n: state.write_page(n, page)):
            with pytest.raises(InputError, match=f"no page {wrong}; there are 2"):
                call(wrong)
        with pytest.raises(InputError, match=f"no page {wrong}"):
            state.copy_page(wrong, 0)
        with pytest.raises(InputError, match=f"no page {wrong}"):
            state.copy_page(0, wrong)
    with pytest.raises(InputError, match="bytes, not 7"):
        state.write_page(0, bytes(7))
    with pytest.raises(TypeError):
        state.read_page(0, page)  # it cannot be written to


def test_states_that_cannot_be_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="f32, f16, bf16, i8, i8r or i4r"):
        _core.KvState.make("q4_0", 1, 1, 32)
    with pytest.raises(MemoryPlanError, match="too many"):
        _core.KvState.make("f32", 1 << 32, 1 << 16, 1 << 16)
    with pytest.raises(InputError, match="positive"):
        _core.KvState.make("f32", 0, 1, 1)


def test_a_fingerprint_is_of_what_decides_the_bits(tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path / "blocked", BLOCKED)
    mine = decoder(folder).state_fingerprint
    assert len(mine) == 32 and int(mine, 16) >= 0
    for options in ({"threads": 2}, {"context": 128}, {"kv_tokens": 4096}):  # none of them changes a page
        assert decoder(folder, **options).state_fingerprint == mine
    others = {decoder(folder, **o).state_fingerprint for o in ({"kv_dtype": "f16"}, {"compute": "bf16"})}
    others.add(decoder(tiny.write_folder(tmp_path / "other", {**BLOCKED, "rope_theta": 5.0})).state_fingerprint)
    others.add(decoder(folder, level=ANOTHER_LEVEL).state_fingerprint)
    assert len(others) == 4 and mine not in others


def test_a_changed_file_has_another_fingerprint(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    assert decoder(copy).state_fingerprint == decoder(folder).state_fingerprint
    weights = copy / "model.safetensors"
    before, data = weights.stat(), bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))  # as if nothing had happened
    assert decoder(copy).state_fingerprint != decoder(folder).state_fingerprint
    data[-1] ^= 1
    weights.write_bytes(data)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert decoder(copy).state_fingerprint != decoder(folder).state_fingerprint
