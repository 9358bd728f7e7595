"""The ES module in Chromium: load, embed, cancel, reload without a network, and files that are damaged on the way."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft import Embedder

TEXTS = ["the cat sat", "a", "Hello, WORLD! 123", "the quick brown fox jumps over the lazy dog", "one two three"]
WEIGHTS = "/st/weights-00001.bin"

LOAD = """async () => {
  const { Weft } = await import("/runtime/weft.js");
  const told = [];
  try {
    globalThis.weft = await Weft.load("/st/", { onProgress: (p) => told.push(p) });
    return { info: weft.info, told };
  } catch (error) {
    return { name: error.name, code: error.code, message: error.message };
  }
}"""
EMBED = """async (texts) => {
  const vectors = await weft.embed(texts);
  const all = new Uint8Array(Float32Array.from(vectors.flatMap((v) => Array.from(v))).buffer);
  return btoa(String.fromCharCode(...all));
}"""


def embed(page: Any, texts: list[str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(page.evaluate(EMBED, texts)), np.float32).reshape(len(texts), -1)


def wanted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    from weft.backends.cpu import levels_present

    if "scalar" not in levels_present():
        pytest.skip("the scalar level was not built: `make test` builds it")
    monkeypatch.setenv("WEFT_ISA", "scalar")
    return Embedder(str(folder), threads=1, compute="f32").encode(TEXTS)


def test_vectors_have_the_bits_of_python(page, st_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = page.evaluate(LOAD)
    assert answer["info"]["level"] == "wasm128"
    assert answer["info"]["kept"]
    last = answer["told"][-1]
    assert last["loaded"] == last["total"] > 0
    assert not last["cached"]
    assert np.array_equal(embed(page, TEXTS), wanted(st_folder, monkeypatch))


def test_a_second_load_takes_files_from_the_cache_and_works_without_a_network(
    page, site, st_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.evaluate(LOAD)
    site.asked.clear()
    assert page.evaluate(LOAD)["told"][-1]["cached"]
    assert WEIGHTS not in site.asked
    for path in ("/st/manifest.json", "/runtime/weft.wasm"):
        page.context.route(f"{site.url}{path}", lambda route: route.abort())
    assert page.evaluate(LOAD)["info"]["dimension"] > 0
    assert np.array_equal(embed(page, TEXTS), wanted(st_folder, monkeypatch))


def test_a_damaged_file_is_refused_and_not_kept(page, site, st_bundle: Path) -> None:
    data = bytearray((st_bundle / "weights-00001.bin").read_bytes())
    data[len(data) // 2] ^= 1
    for wrong in (bytes(data), bytes(data[:-1]), bytes(data) + b"0"):
        site.changed[WEIGHTS] = wrong
        answer = page.evaluate(LOAD)
        assert (answer["name"], answer["code"]) == ("WeftError", "format")
        assert "weights-00001.bin" in answer["message"]
    site.changed.clear()
    assert not page.evaluate(LOAD)["told"][-1]["cached"]


def test_what_is_damaged_in_the_cache_is_fetched_again(page, site) -> None:
    page.evaluate(LOAD)
    page.evaluate(
        """async () => {
          const cache = await caches.open("weft-bundles-1");
          const keys = (await cache.keys()).filter((key) => key.url.includes("weights"));
          for (const key of keys) await cache.put(key, new Response("x"));
        }"""
    )
    site.asked.clear()
    assert page.evaluate(LOAD)["info"]["kept"]
    assert WEIGHTS in site.asked
    site.asked.clear()
    page.evaluate(LOAD)
    assert WEIGHTS not in site.asked


def test_a_new_export_replaces_the_old_one_in_the_cache_and_both_can_be_deleted(
    page, site, st_folder: Path, tmp_path: Path
) -> None:
    from weft.export import export

    kept = """async () => {
      const keys = await (await caches.open("weft-bundles-1")).keys();
      return keys.map(({ url }) => url).filter((url) => url.includes("sha256"));
    }"""
    page.evaluate(LOAD)
    before = page.evaluate(kept)
    site.folders["st"] = export(str(st_folder), tmp_path / "again.weft", compute="f32", shard_bytes=16_384).path
    page.evaluate(LOAD)
    after = page.evaluate(kept)
    assert len(after) > len(before)
    assert not {url for url in before if "weights" in url} & set(after)
    page.evaluate("async () => (await import('/runtime/weft.js')).Weft.forget('/other/')")
    assert page.evaluate(kept) == after
    page.evaluate("async () => (await import('/runtime/weft.js')).Weft.forget('/st')")
    assert page.evaluate(kept) == []


def test_bad_addresses_and_input_say_what_is_wrong(page, site) -> None:
    tried = page.evaluate(
        """async () => {
          const { Weft } = await import("/runtime/weft.js");
          const failing = (work) => work.then(() => null, ({ name, code, message }) => ({ name, code, message }));
          const weft = await Weft.load("/st/");
          return [
            await failing(Weft.load("/nothing/")), await failing(Weft.load("/runtime/")),
            await failing(weft.embed(["the cat sat ".repeat(40)])), await failing(weft.embed([1])),
            await failing(weft.generate("a")), (await weft.embed([])).length,
            (weft.close(), await failing(weft.embed(["a"]))),
          ];
        }"""
    )
    assert [answer if isinstance(answer, int) else answer["code"] for answer in tried] == [
        *("not_found", "not_found", "too_long", "input", "unsupported"),
        *(0, "input"),
    ]


def test_a_load_and_an_embedding_can_be_cancelled(page, site) -> None:
    import threading

    site.held[WEIGHTS] = threading.Event()
    code = page.evaluate(
        """async () => {
          const { Weft } = await import("/runtime/weft.js");
          const stop = new AbortController();
          const onProgress = ({ file }) => file.startsWith("weights") && stop.abort();
          return Weft.load("/st/", { signal: stop.signal, onProgress }).then(() => "loaded", (error) => error.code);
        }"""
    )
    assert code == "aborted"
    site.held.pop(WEIGHTS).set()
    page.evaluate(LOAD)
    done = page.evaluate(
        """async () => {
          const stop = new AbortController(), texts = Array(20000).fill("the quick brown fox jumps over the lazy dog");
          let done = 0;
          const onProgress = (progress) => { done = progress.done; stop.abort(); };
          const running = weft.embed(texts, { signal: stop.signal, onProgress });
          const code = await running.then(() => "embedded", (error) => error.code);
          return [code, done < texts.length, (await weft.embed(["a"])).length];
        }"""
    )
    assert done == ["cancelled", True, 1]


def test_two_tabs_use_one_cache(page, site) -> None:
    page.evaluate(LOAD)
    site.asked.clear()
    other = page.context.new_page()
    other.goto(f"{site.url}/")
    assert other.evaluate(LOAD)["told"][-1]["cached"]
    assert WEIGHTS not in site.asked
    assert np.array_equal(embed(page, TEXTS), embed(other, TEXTS))


def test_without_room_in_the_cache_the_model_works(page, site) -> None:
    quota = page.context.new_cdp_session(page)
    quota.send("Storage.overrideQuotaForOrigin", {"origin": site.url, "quotaSize": 1000})
    assert not page.evaluate(LOAD)["info"]["kept"]
    assert embed(page, TEXTS).shape[0] == len(TEXTS)
    quota.send("Storage.overrideQuotaForOrigin", {"origin": site.url})
    assert page.evaluate(LOAD)["info"]["kept"]


@pytest.mark.parametrize("isolated", [False, True])
def test_a_text_can_be_ended_while_it_is_written(page, site, tmp_path: Path, isolated: bool) -> None:
    """Without isolation there is no memory that the page shares with the worker."""
    from tiny_chat import write_chat_model

    from weft.export import export

    model = write_chat_model(tmp_path / "tiny.gguf", llama__context_length=8000)
    site.folders["chat"] = export(str(model), tmp_path / "chat.weft", compute="f32").path
    finish, tokens, again, shared = page.evaluate(
        """async () => {
          const { Weft } = await import("/runtime/weft.js");
          const weft = await Weft.load("/chat/", { context: 8000 }), stop = new AbortController();
          const onToken = () => stop.abort();
          const done = await weft.generate("Once", { maxTokens: 7900, onToken, signal: stop.signal });
          const short = await weft.generate("Once", { maxTokens: 5 });
          return [done.finish, done.tokens, short.tokens, crossOriginIsolated];
        }"""
    )
    assert shared == isolated
    assert finish == "cancelled"
    assert 0 < tokens < 7900
    assert again == 5
