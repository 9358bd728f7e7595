"""WebGPU in a tab: the vectors and tokens of Python, what is chosen and why, damaged lists, a lost GPU."""

import base64
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import open_chromium
from static_site import RUNTIME, Site
from tiny_chat import write_chat_model

import weft
from weft import Embedder
from weft.export import export

SOFTWARE = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
TEXTS = ["the cat sat", "a", "Hello, WORLD! 123", "the quick brown fox jumps over the lazy dog", "one two three"] * 3
PROMPTS = ["Once", "Once upon a time", "x" * 300, "日本語 and <|im_end|> inside"]
MESSAGES = [{"role": "user", "content": "Hello, who are you?"}]
LOAD = """async ([url, options]) => {
  const { Weft } = await import("/runtime/weft.js");
  try {
    globalThis.weft = await Weft.load(url, options);
    return { device: weft.device, info: weft.info };
  } catch (error) {
    return { name: error.name, code: error.code, message: error.message };
  }
}"""
EMBED = """async ([texts, options]) => {
  try {
    const vectors = await weft.embed(texts, options);
    const all = new Uint8Array(Float32Array.from(vectors.flatMap((v) => Array.from(v))).buffer);
    let text = "";
    for (const byte of all) text += String.fromCharCode(byte);
    return btoa(text);
  } catch (error) {
    return { code: error.code, message: error.message };
  }
}"""
WRITE = """async ([method, subject, options]) => {
  const ids = [];
  const done = await weft[method](subject, { ...options, onToken: (_, id) => id >= 0 && ids.push(id) });
  return { ...done, ids };
}"""

# Keeps the last worker, for messages of a test.
LAST = """() => {
  const Own = Worker;
  globalThis.Worker = class extends Own {
    constructor(...given) {
      super(...given);
      globalThis.last = this;
    }
  };
}"""


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("chat") / "tiny.gguf", llama__context_length=1024)


@pytest.fixture(scope="module")
def bundles(st_folder: Path, chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bundles")
    return {
        "st": export(str(st_folder), folder / "st.weft", compute="f32", gpu=True).path,
        "plain": export(str(st_folder), folder / "plain.weft", compute="f32", gpu=False).path,
        "chat": export(str(chat_model), folder / "chat.weft", compute="f32", gpu=True).path,
    }


@pytest.fixture
def site(wasm: Path, bundles: dict[str, Path]) -> Iterator[Site]:
    opened = Site({"runtime": RUNTIME, **bundles})
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def chromium(wasm: Path) -> Iterator[Any]:
    """With a GPU in software."""
    with open_chromium("WebGPU in a tab is not tested", *SOFTWARE) as browser:
        yield browser


@pytest.fixture(scope="module")
def need_adapter(chromium: Any, bundles: dict[str, Path]) -> None:
    opened = Site({})
    page = chromium.new_page()
    page.goto(f"{opened.url}/")
    found = page.evaluate("async () => Boolean(await navigator.gpu?.requestAdapter())")
    page.close()
    opened.close()
    if not found:
        pytest.skip("this Chromium starts no WebGPU adapter; WebGPU in a tab is not tested")


@pytest.fixture
def tab(need_adapter: None, page: Any) -> Any:
    """A page of its own, for tests that load models in their own ways."""
    return page


@contextmanager
def loaded(chromium: Any, folders: dict[str, Path], name: str) -> Iterator[Any]:
    """A page with a model on the GPU: its shaders are compiled once for several tests."""
    site = Site({"runtime": RUNTIME, **folders})
    page = chromium.new_page()
    page.set_default_timeout(300_000)
    page.goto(f"{site.url}/")
    answer = load(page, name)
    assert answer.get("device", {}).get("kind") == "gpu", answer
    yield page
    page.close()
    site.close()


@pytest.fixture(scope="module")
def embedding(need_adapter: None, chromium: Any, bundles: dict[str, Path]) -> Iterator[Any]:
    with loaded(chromium, bundles, "st") as page:
        yield page


@pytest.fixture(scope="module")
def writing(need_adapter: None, chromium: Any, bundles: dict[str, Path]) -> Iterator[Any]:
    with loaded(chromium, bundles, "chat") as page:
        yield page


def load(tab: Any, name: str, **options: Any) -> dict[str, Any]:
    return tab.evaluate(LOAD, [f"/{name}/", {"device": "gpu", **options}])


def embed(tab: Any, texts: list[str], **options: Any) -> np.ndarray:
    answer = tab.evaluate(EMBED, [texts, options])
    assert isinstance(answer, str), answer
    return np.frombuffer(base64.b64decode(answer), np.float32).reshape(len(texts), -1)


def far(found: np.ndarray, best: np.ndarray) -> float:
    return float(np.max(1 - np.sum(found.astype(np.float64) * best, axis=1)))


def test_vectors_are_those_of_python(embedding: Any, st_folder: Path) -> None:
    best = Embedder(str(st_folder), threads=1, compute="f32")
    assert far(embed(embedding, TEXTS), best.encode(TEXTS)) < 1e-6
    assert far(embed(embedding, TEXTS[:3], role="query"), best.encode_query(TEXTS[:3])) < 1e-6


def test_a_text_has_the_same_bits_alone_and_among_others(embedding: Any) -> None:
    together = embed(embedding, TEXTS)
    for index in (0, 1, 3):
        assert np.array_equal(embed(embedding, [TEXTS[index]])[0], together[index])


def test_input_that_is_refused_leaves_the_model_usable(embedding: Any) -> None:
    for texts, options, code in (
        (["a", "the cat sat " * 40], {}, "too_long"),
        (["a"], {"role": "verse"}, "not_found"),
    ):
        assert embedding.evaluate(EMBED, [texts, options])["code"] == code
    assert embed(embedding, ["the cat sat " * 40], truncate=True).shape[0] == 1


@pytest.mark.weights
def test_real_vectors(tab: Any, site: Site, minilm: Path, tmp_path: Path) -> None:
    site.folders["minilm"] = export(str(minilm), tmp_path / "m.weft", compute="f32", gpu=True).path
    load(tab, "minilm")
    best = Embedder(str(minilm), threads=1, compute="f32").encode(TEXTS[:5])
    assert far(embed(tab, TEXTS[:5]), best) < 1e-6


def test_auto_leaves_software_to_wasm_and_says_why(tab: Any, site: Site) -> None:
    answer = load(tab, "st", device="auto")
    assert answer["device"]["kind"] == "wasm"
    assert "software" in answer["device"]["why"]
    assert "/st/gpu.json" not in site.asked
    assert load(tab, "st", device="wasm")["device"]["why"] == "it was asked for"
    assert load(tab, "st", device="npu")["code"] == "input"


def change_runner(site: Site, *changes: tuple[str, str], more: str = "") -> None:
    text = (RUNTIME / "gpu.js").read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    site.changed["/runtime/gpu.js"] = f"{text}\n{more}\n".encode()


# A browser's real GPU is not here: the software one is taken for one.
REAL = ("const isSoftware = ", "const isSoftware = () => false, measured = ")


def test_a_gpu_that_is_not_in_software_is_taken_by_auto(tab: Any, site: Site) -> None:
    change_runner(site, REAL)
    device = load(tab, "st", device="auto")["device"]
    assert device["kind"] == "gpu"
    assert "all that the model needs" in device["why"]


def test_a_bundle_without_launches_runs_elsewhere_and_says_why(tab: Any) -> None:
    answer = load(tab, "plain")
    assert answer["code"] == "unsupported"
    assert "no launches for GPUs" in answer["message"]
    answer = load(tab, "plain", device="auto")
    assert answer["device"]["kind"] == "wasm"
    assert "no launches for GPUs" in answer["device"]["why"]


def test_weights_are_not_in_the_module(tab: Any, bundles: dict[str, Path]) -> None:
    """What the module holds is the tokenizer; and all files are in the cache afterwards."""
    assert load(tab, "st")["info"]["kept"]
    kept = tab.evaluate(
        """async () => {
          const keys = await (await caches.open("weft-bundles-1")).keys();
          return keys.map(({ url }) => url).filter((url) => url.includes("sha256"));
        }"""
    )
    names = {path.name for path in bundles["st"].iterdir()} - {"manifest.json"}
    assert {url.split("/")[-1].split("?")[0] for url in kept} == names


def changed_list(folder: Path, change: Callable[[dict[str, Any]], None]) -> tuple[bytes, bytes]:
    """The list with a change and a manifest that lists it."""
    about, manifest = json.loads((folder / "gpu.json").read_text()), json.loads((folder / "manifest.json").read_text())
    change(about)
    data = json.dumps(about).encode()
    manifest["files"]["gpu.json"] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return data, json.dumps(manifest).encode()


def test_a_damaged_list_is_refused(tab: Any, site: Site, bundles: dict[str, Path]) -> None:
    data = bytearray((bundles["st"] / "gpu.json").read_bytes())
    data[len(data) // 2] ^= 1
    site.changed["/st/gpu.json"] = bytes(data)
    answer = load(tab, "st")
    assert (answer["code"], "gpu.json" in answer["message"]) == ("format", True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda about: about["shaders"][0].update(text="fn main() { nonsense"), "refuses the shaders"),
        (lambda about: about["launches"][0].update(buffers=[10**6]), "a buffer of a launch"),
        (lambda about: about["inputs"][0].update(at=[0, 0, 0, 1 << 30]), "outside the memory"),
        (lambda about: about["inputs_end"].__setitem__(3, 66), "outside the memory"),
    ],
)
def test_a_list_that_is_wrong_is_refused(
    tab: Any, site: Site, bundles: dict[str, Path], change: Callable[[dict[str, Any]], None], words: str
) -> None:
    site.changed["/st/gpu.json"], site.changed["/st/manifest.json"] = changed_list(bundles["st"], change)
    answer = load(tab, "st")
    if "code" not in answer:
        answer = tab.evaluate(EMBED, [["a"], {}])
    assert answer["code"] == "format", answer
    assert words in answer["message"]


def test_a_lost_gpu_is_told_and_the_model_goes_on_in_wasm(tab: Any, site: Site, st_folder: Path) -> None:
    # What a driver does that resets the GPU, from the page: a message that the worker does not know.
    lose = "addEventListener('message', ({ data }) => data.lose && runners.forEach((one) => one.device.destroy()));"
    change_runner(site, ('  lost = "";', '  lost = (runners.push(this), "");'), more=f"const runners = [];\n{lose}")
    tab.evaluate(LAST)
    load(tab, "st")
    assert embed(tab, TEXTS[:2]).shape[0] == 2
    tab.evaluate("() => last.postMessage({ lose: true, cancel: -1 })")
    answer = tab.evaluate(EMBED, [["a"], {}])
    assert answer["code"] == "lost", answer
    assert 'device "wasm"' in answer["message"]
    assert load(tab, "st", device="wasm")["device"]["kind"] == "wasm"
    assert far(embed(tab, TEXTS[:3]), Embedder(str(st_folder), threads=1, compute="f32").encode(TEXTS[:3])) < 1e-6


def write(tab: Any, method: str, subject: Any, **options: Any) -> dict[str, Any]:
    return tab.evaluate(WRITE, [method, subject, options])


def test_tokens_are_those_of_python(writing: Any, chat_model: Path) -> None:
    model = weft.load(str(chat_model), compute="f32", threads=1, draft="none")
    drawn = {"temperature": 1.2, "topK": 5, "repetitionPenalty": 1.3, "seed": 12345678901}
    named = {"temperature": 1.2, "top_k": 5, "repetition_penalty": 1.3, "seed": 12345678901}
    for prompt in PROMPTS:
        for options, same in (({}, {}), (drawn, named)):
            said = write(writing, "generate", prompt, maxTokens=12, **options)
            wanted = model.generate(prompt, max_tokens=12, **same)
            assert said["ids"] == list(wanted.tokens), (prompt, options)
            assert (said["text"], said["finish"]) == (wanted.text, wanted.finish_reason)
    wanted = list(model.generate(model.chat_ids(MESSAGES), max_tokens=12).tokens)
    assert write(writing, "chat", MESSAGES, maxTokens=12)["ids"] == wanted


def test_long_texts_have_the_tokens_of_python(writing: Any, chat_model: Path) -> None:
    """Chunks of a prompt, and attention that is split over workgroups."""
    model = weft.load(str(chat_model), compute="f32", threads=1, draft="none")
    prompt = "abcdefghij" * 60
    said = write(writing, "generate", prompt, maxTokens=40)
    assert said["promptTokens"] > 512
    assert said["ids"] == list(model.generate(prompt, max_tokens=40).tokens)


def test_a_text_is_ended_and_the_next_one_is_whole(writing: Any) -> None:
    ended = writing.evaluate(
        """async () => {
          const stop = new AbortController();
          const onToken = () => stop.abort();
          const done = await weft.generate("Once", { maxTokens: 900, signal: stop.signal, onToken });
          return [done.finish, done.tokens, (await weft.generate("Once", { maxTokens: 5 })).tokens];
        }"""
    )
    assert (ended[0], ended[2]) == ("cancelled", 5)
    assert 0 < ended[1] < 900


@pytest.mark.parametrize("kind", ["q8_0", "q4_1", "q6_k", "mxfp4"])
def test_tokens_of_stored_types_are_those_of_python(tab: Any, site: Site, tmp_path: Path, kind: str) -> None:
    """Rows are arranged for shaders when they are uploaded."""
    from test_wasm_weights import write as write_model

    path = write_model(tmp_path / "m.gguf", kind)
    site.folders["stored"] = export(path, tmp_path / "b.weft", gpu=True).path
    assert load(tab, "stored")["info"]["compute"] == "f32"  # of a bundle in int8
    wanted = weft.load(path, compute="f32", threads=1, draft="none").generate("Once upon", max_tokens=8)
    assert write(tab, "generate", "Once upon", maxTokens=8)["ids"] == list(wanted.tokens)


def test_matrices_that_are_cut_give_the_same_vectors(
    tab: Any, site: Site, st_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of large models are larger than a binding may be."""
    from weft.backends.webgpu.listing.backend import ListedDevice

    monkeypatch.setattr(ListedDevice, "largest_buffer", 8192)
    site.folders["cut"] = export(str(st_folder), tmp_path / "cut.weft", compute="f32", gpu=True).path
    buffers = json.loads((site.folders["cut"] / "gpu.json").read_text())["buffers"]
    assert any(piece.get("first") for buffer in buffers for piece in buffer["pieces"])
    load(tab, "cut")
    assert far(embed(tab, TEXTS), Embedder(str(st_folder), threads=1, compute="f32").encode(TEXTS)) < 1e-6


def test_a_bundle_with_room_for_adapters_stays_in_wasm_unless_it_is_asked(
    tab: Any, site: Site, st_folder: Path, tmp_path: Path
) -> None:
    change_runner(site, REAL)
    site.folders["room"] = export(str(st_folder), tmp_path / "r.weft", compute="f32", adapters=True, gpu=True).path
    answer = load(tab, "room", device="auto")
    assert answer["device"]["kind"] == "wasm"
    assert "adapters" in answer["device"]["why"]
    answer = load(tab, "room")
    assert (answer["device"]["kind"], answer["info"]["adapters"]) == ("gpu", False)
    refused = tab.evaluate("() => weft.loadAdapter('/room/gpu.json').then(() => null, ({ code }) => code)")
    assert refused == "unsupported"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, "404"),
        (lambda about: about.update(weft_gpu=2), "version 2"),
        (lambda about: about["shaders"][0].update(text="fn main() { nonsense"), "refuses the shaders"),
    ],
    ids=["missing", "newer", "not-compiled"],
)
def test_auto_takes_the_module_where_the_launches_cannot_be_had(
    tab: Any, site: Site, bundles: dict[str, Path], tmp_path: Path, change: Callable[..., None] | None, words: str
) -> None:
    """A bundle that works everywhere else works in a browser that refuses its shaders."""
    change_runner(site, REAL)
    if change is None:
        site.folders["part"] = shutil.copytree(bundles["st"], tmp_path / "part")
        (site.folders["part"] / "gpu.json").unlink()
    else:
        site.folders["part"] = bundles["st"]
        site.changed["/part/gpu.json"], site.changed["/part/manifest.json"] = changed_list(bundles["st"], change)
    device = load(tab, "part", device="auto")["device"]
    assert device["kind"] == "wasm"
    assert words in device["why"]
    assert embed(tab, TEXTS[:2]).shape[0] == 2


def test_a_gpu_whose_buffers_are_too_small_for_the_longest_text_is_left(
    tab: Any, site: Site, bundles: dict[str, Path]
) -> None:
    change_runner(site, ("const largest = Math.min(", "const largest = Math.min(1 << 20, "))
    manifest = json.loads((bundles["st"] / "manifest.json").read_text())
    manifest["embed"]["max_tokens"] = 2000
    site.changed["/st/manifest.json"] = json.dumps(manifest).encode()
    answer = load(tab, "st")
    assert (answer["code"], "a text of 2000 tokens" in answer["message"]) == ("unsupported", True)


def test_a_load_that_is_cancelled_while_shaders_are_compiled_gives_no_model(tab: Any, site: Site) -> None:
    told = 'await this.#checked("the shaders"'
    change_runner(site, (told, f"postMessage({{ id: 1, progress: {{ compiling: true }} }}), {told}"))
    code = tab.evaluate(
        """async () => {
          const { Weft } = await import("/runtime/weft.js");
          const stop = new AbortController();
          const onProgress = ({ compiling }) => compiling && stop.abort();
          const options = { device: "gpu", signal: stop.signal, onProgress };
          return Weft.load("/st/", options).then(() => "loaded", (error) => error.code);
        }"""
    )
    assert code == "aborted"


def test_a_step_that_has_no_memory_leaves_the_model_usable(tab: Any, site: Site) -> None:
    """A browser that refuses a large buffer gives one that nothing can be done with."""
    refuse = """
      const own = GPUDevice.prototype.createBuffer, most = { bytes: Infinity };
      GPUDevice.prototype.createBuffer = function (about) {
        return own.call(this, about.size > most.bytes ? { ...about, size: 2 ** 45 } : about);
      };
      addEventListener("message", ({ data }) => { if (data.most) most.bytes = data.most; });
    """
    change_runner(site, more=refuse)
    tab.evaluate(LAST)
    load(tab, "st")
    wanted = embed(tab, ["a"])
    tab.evaluate("() => last.postMessage({ most: 100_000, cancel: -1 })")
    assert "code" in tab.evaluate(EMBED, [TEXTS * 4, {}])
    assert np.array_equal(embed(tab, ["a"]), wanted)


def test_a_place_for_the_largest_outside_the_memory_is_refused(tab: Any, site: Site, bundles: dict[str, Path]) -> None:
    def change(about: dict[str, Any]) -> None:
        about["largest"]["at"] = [0, 0, 0, -64]

    site.changed["/chat/gpu.json"], site.changed["/chat/manifest.json"] = changed_list(bundles["chat"], change)
    load(tab, "chat")
    code = tab.evaluate("() => weft.generate('Once').then(() => '', ({ code, message }) => `${code} ${message}`)")
    assert code.startswith("format [gpu.json] the largest lies outside")
