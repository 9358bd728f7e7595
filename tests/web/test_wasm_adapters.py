"""Adapters in weft.wasm: tokens and vectors are those of Python at the scalar level with the same adapter, in Node and
on a page, and what does not fit is refused by a code."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_adapters
from test_wasm_generates import MESSAGES, PROMPTS, need_scalar
from test_wasm_in_node import TEXTS, vectors_of
from tiny_chat import CONFIG, write_chat_model

import weft
from weft import Embedder
from weft.export import export, export_adapter

BERT = {**tiny.BERT, "vocab_size": 230, "hidden_size": 36, "num_attention_heads": 3}
DORA = {**tiny_adapters.PEFT, "use_dora": True, "target_modules": [*tiny_adapters.ALL, "lm_head"]}


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("chat") / "tiny.gguf")


@pytest.fixture(scope="module")
def chat_lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_adapters.write_adapter(tmp_path_factory.mktemp("lora") / "formal", CONFIG, DORA, "f16")


@pytest.fixture(scope="module")
def chat_file(chat_model: Path, chat_lora: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_adapter(str(chat_model), chat_lora, tmp_path_factory.mktemp("file") / "formal.safetensors").path


@pytest.fixture(scope="module", params=["f32", "int8"])
def compute(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def chat_bundle(chat_model: Path, compute: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    return export(str(chat_model), folder / "chat.weft", compute=compute, adapters=True).path


def test_tokens_with_an_adapter_are_those_of_python(
    in_node: Any,
    chat_model: Path,
    chat_bundle: Path,
    chat_lora: Path,
    chat_file: Path,
    compute: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    need_scalar(monkeypatch)
    model = weft.load(str(chat_model), compute=compute, threads=1, draft="none")
    model.adapters.load("formal", chat_lora)
    rules = {"adapter": "formal", "max_tokens": 16}
    answer = in_node(chat_bundle, prompts=PROMPTS, messages=MESSAGES, options={"maxTokens": 16}, adapter=str(chat_file))
    assert answer["info"]["adapters"]
    assert (answer["adapter"]["name"], answer["adapter"]["rank"]) == ("formal", 4)
    for prompt, found in zip(PROMPTS, answer["written"]):
        assert tuple(found["ids"]) == model.generate(prompt, **rules).tokens, prompt
    assert tuple(answer["chat"]["ids"]) == model.generate(model.chat_ids(MESSAGES), **rules).tokens
    alone = in_node(chat_bundle, prompts=PROMPTS, options={"maxTokens": 16})["written"]
    assert [tuple(one["ids"]) for one in alone] == [model.generate(one, max_tokens=16).tokens for one in PROMPTS]
    assert alone != answer["written"]


@pytest.fixture(scope="module")
def st_adapted(st_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A bundle with room for adapters, an adapter's folder and its file."""
    folder = tmp_path_factory.mktemp("adapted")
    settings = {**tiny_adapters.PEFT_BERT, "target_modules": tiny_adapters.BERT_ALL}
    lora = tiny_adapters.write_adapter(folder / "legal", BERT, settings)
    bundle = export(str(st_folder), folder / "st.weft", compute="f32", adapters=True).path
    return bundle, lora, export_adapter(str(st_folder), lora, folder / "legal.safetensors").path


def adapted_vectors(st_folder: Path, lora: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    need_scalar(monkeypatch)
    embedder = Embedder(str(st_folder), threads=1, compute="f32")
    embedder.adapters.load("legal", lora)
    return embedder.encode(TEXTS, adapter="legal")


def test_vectors_with_an_adapter_have_the_bits_of_python(
    in_node: Any, st_folder: Path, st_adapted: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, lora, file = st_adapted
    answer = in_node(bundle, texts=TEXTS, adapter=str(file), repeat=40)
    assert np.array_equal(vectors_of(answer, len(TEXTS)), adapted_vectors(st_folder, lora, monkeypatch))
    assert answer["heaps"][0] == answer["heaps"][1]  # adapters that are freed leave nothing


def test_an_adapter_that_does_not_fit_is_refused(
    in_node: Any, st_bundle: Path, st_adapted: tuple[Path, Path, Path], chat_file: Path, tmp_path: Path
) -> None:
    bundle, _, file = st_adapted
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(file.read_bytes()[:-4] + b"abcd")
    for model, given, code in (
        (bundle, chat_file, "input"),
        (bundle, damaged, "format"),
        (st_bundle, file, "unsupported"),
    ):
        answer = in_node(model, texts=["a"], adapter=str(given), repeat=100)
        assert answer["error"]["code"] == code
        assert answer["heaps"][0] == answer["heaps"][1]


def test_a_page_loads_and_frees_adapters(
    page: Any, site: Any, st_folder: Path, st_adapted: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, lora, file = st_adapted
    site.folders |= {"adapted": bundle, "loras": file.parent}
    work = """async (texts) => {
      const { Weft } = await import("/runtime/weft.js");
      const failing = (work) => work.then(() => null, ({ code }) => code);
      const weft = await Weft.load("/adapted/"), legal = await weft.loadAdapter("/loras/legal.safetensors");
      const given = Array.from(await weft.embed(texts, { adapter: legal }), (one) => Array.from(one));
      const alone = Array.from((await weft.embed(texts, { adapter: null }))[0]);
      const other = await Weft.load("/st/"), refused = [
        await failing(other.embed(["a"], { adapter: legal })),
        await failing(other.loadAdapter("/loras/legal.safetensors")),
        await failing(weft.loadAdapter("/loras/none.safetensors")), await failing(weft.embed(["a"], { adapter: {} })),
        (await legal.free(), await failing(weft.embed(["a"], { adapter: legal }))),
      ];
      await legal.free();
      const room = [weft.info.adapters, other.info.adapters];
      return { given, alone, refused, room, name: legal.name, rank: legal.rank };
    }"""
    done = page.evaluate(work, TEXTS)
    wanted = adapted_vectors(st_folder, lora, monkeypatch)
    assert np.array_equal(np.asarray(done["given"], np.float32), wanted)
    assert done["alone"] != done["given"][0]
    assert done["refused"] == ["input", "unsupported", "not_found", "input", "input"]
    assert (done["room"], done["name"], done["rank"]) == ([True, False], "legal", 4)
    # Without a network the adapter is there, until it is forgotten.
    page.context.route(f"{site.url}/loras/**", lambda route: route.abort())
    assert page.evaluate(work.replace("/none.", "/legal."), TEXTS)["given"] == done["given"]
    kept = "async () => (await (await caches.open('weft-bundles-1')).keys()).map(({ url }) => url)"
    assert [url for url in page.evaluate(kept) if "legal" in url]
    page.evaluate("async () => (await import('/runtime/weft.js')).Weft.forget('/loras/legal.safetensors')")
    found = page.evaluate(kept)
    assert not [url for url in found if "legal" in url] and [url for url in found if "adapted" in url]
