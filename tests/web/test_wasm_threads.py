"""A team of threads in weft-threads.wasm: the bits of one thread, in Node and in isolated pages; alone elsewhere."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from static_site import RUNTIME
from test_wasm_in_chromium import EMBED

from weft.export import export

TEXTS = ["the cat sat", "a", "Hello, WORLD! 123", "the quick brown fox jumps over the lazy dog"] * 11
LOAD = """async (options) => {
  const { Weft } = await import("/runtime/weft.js");
  globalThis.weft = await Weft.load("/st/", options);
  return { info: weft.info, isolated: crossOriginIsolated };
}"""


@pytest.fixture(scope="session")
def threaded(wasm: Path) -> Path:
    module = RUNTIME / "weft-threads.wasm"
    if not module.is_file():
        pytest.skip("weft-threads.wasm is not built here: `make wasm` builds it")
    return module


def embed(page: Any, texts: list[str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(page.evaluate(EMBED, texts)), np.float32).reshape(len(texts), -1)


def test_vectors_are_the_same_for_every_number_of_threads(in_node, threaded: Path, st_bundle: Path) -> None:
    alone = in_node(st_bundle, texts=TEXTS)
    for threads in (1, 2, 3, 5):
        answer = in_node(st_bundle, texts=TEXTS, module=threaded.name, threads=threads)
        assert answer["info"]["threads"] == threads
        assert answer["vectors"] == alone["vectors"]


@pytest.mark.parametrize("compute", ["f32", "int8"])
def test_tokens_are_the_same_for_every_number_of_threads(in_node, threaded: Path, tmp_path: Path, compute: str) -> None:
    from test_wasm_weights import write

    bundle = export(write(tmp_path / "m.gguf", "q4_1"), tmp_path / "b.weft", compute=compute).path
    asked = {"prompts": ["Once upon", "Once upon a time there was"], "options": {"maxTokens": 40}}
    alone = in_node(bundle, **asked)["written"]
    for threads in (2, 4):
        assert in_node(bundle, **asked, module=threaded.name, threads=threads)["written"] == alone


def test_a_team_serves_many_steps_and_more_threads_than_cores(in_node, threaded: Path, st_bundle: Path) -> None:
    alone = in_node(st_bundle, texts=TEXTS[:5])
    answer = in_node(st_bundle, texts=TEXTS[:5], repeat=300, module=threaded.name, threads=9)
    assert answer["vectors"] == alone["vectors"]
    assert answer["heaps"][0] == answer["heaps"][1]


@pytest.mark.parametrize("isolated", [False, True])
def test_a_page_has_a_team_if_it_is_isolated(
    page: Any, site: Any, in_node, threaded, st_bundle, isolated: bool
) -> None:
    wanted = np.frombuffer(base64.b64decode(in_node(st_bundle, texts=TEXTS)["vectors"]), np.float32)
    for threads in (3, 1):
        site.asked.clear()
        answer = page.evaluate(LOAD, {"threads": threads})
        assert answer["isolated"] == isolated
        assert answer["info"]["threads"] == (threads if isolated else 1)
        assert ("/runtime/weft-threads.wasm" in site.asked) == (isolated and threads > 1)
        assert np.array_equal(embed(page, TEXTS).ravel(), wanted)


@pytest.mark.parametrize("isolated", [True])
@pytest.mark.parametrize("missing", ["/runtime/weft-threads.wasm", "/runtime/thread.js"])
def test_without_a_team_the_model_works_alone(
    page: Any, site: Any, threaded: Path, isolated: bool, missing: str
) -> None:
    site.changed[missing] = b"throw new Error()"
    assert page.evaluate(LOAD, {"threads": 2})["info"]["threads"] == 1
    assert embed(page, TEXTS[:2]).shape[0] == 2


@pytest.mark.parametrize("isolated", [True])
def test_a_damaged_file_is_refused_where_memory_is_shared(
    page, site, threaded: Path, st_bundle: Path, isolated
) -> None:
    path = "/st/weights-00001.bin"
    data = bytearray((st_bundle / "weights-00001.bin").read_bytes())
    data[len(data) // 2] ^= 1
    site.changed[path] = bytes(data)
    code = page.evaluate(
        """async () => {
          const { Weft } = await import("/runtime/weft.js");
          return Weft.load("/st/", { threads: 2 }).then(() => "loaded", ({ code }) => code);
        }"""
    )
    assert code == "format"


def test_a_wrong_number_of_threads_is_refused(page: Any, site: Any) -> None:
    code = page.evaluate(
        """async () => {
          const { Weft } = await import("/runtime/weft.js");
          return Weft.load("/st/", { threads: -1 }).then(() => "loaded", ({ code }) => code);
        }"""
    )
    assert code == "input"
