"""Adapters beside a bundle: tokens and vectors are those of Python with the same adapter, the model alone keeps its
bits, and a file that does not fit is refused with a code and a sentence."""

import json
import struct
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import libweft
import numpy as np
import pytest
import tiny
import tiny_adapters
from libweft import Model, StatusError
from test_low_bit import packed
from tiny_chat import CONFIG, tokenizer_keys, write_chat_model
from tiny_gguf import gguf_from_config, gguf_tensors

import weft
from weft import Embedder
from weft.backends.cpu import levels_present
from weft.dtype import DTYPES
from weft.errors import InputError, NotFoundError, UnsupportedError, WeftError
from weft.export import export, export_adapter
from weft.ops.packed import pack
from weft.weights import write_gguf
from weft.weights.files import TensorView
from weft.weights.safetensors import open_safetensors

PROMPTS = ("Once", "Once upon a time", "Once upon a", "x" * 700)
TEXTS = ["the cat sat", "a", "Hello, WORLD! 123", "the quick brown fox jumps over the lazy dog"] * 9
RICH = {**tiny_adapters.PEFT, **tiny_adapters.PATTERNS, "target_modules": [*tiny_adapters.ALL, "embed_tokens"]}
KINDS: dict[str, dict[str, Any]] = {
    "plain": tiny_adapters.PEFT,
    "patterns": RICH,
    "dora": {**tiny_adapters.PEFT, "use_dora": True, "r": 20},
    "whole": {**tiny_adapters.PEFT, "target_modules": ["v_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
}
BERT = {**tiny.BERT, "vocab_size": 230, "hidden_size": 36, "num_attention_heads": 3}


def folders(folder: Path) -> dict[str, Path]:
    """Four adapters of different kinds and types of elements."""
    dtypes = ("f32", "f16", "bf16")
    return {
        name: tiny_adapters.write_adapter(folder / name, CONFIG, settings, dtypes[seed % 3], seed)
        for seed, (name, settings) in enumerate(KINDS.items(), 1)
    }


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("chat") / "tiny.gguf")


@pytest.fixture(scope="module")
def chat_bundle(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(str(chat_model), tmp_path_factory.mktemp("bundle") / "chat.weft", adapters=True).path


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return folders(tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def files(chat_model: Path, adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    return {
        name: export_adapter(str(chat_model), path, folder / f"{name}.safetensors").path
        for name, path in adapters.items()
    }


def said(model: weft.Model, prompt: str, adapter: str | None) -> tuple[int, ...]:
    return model.generate(prompt, adapter=adapter, max_tokens=16).tokens


@pytest.mark.parametrize("level", levels_present())
def test_tokens_with_an_adapter_are_those_of_python(
    chat_model: Path,
    chat_bundle: Path,
    adapters: dict[str, Path],
    files: dict[str, Path],
    level: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WEFT_ISA", level)
    model = weft.load(str(chat_model), compute="f32", threads=1, draft="none")
    for name, path in adapters.items():
        model.adapters.load(name, path)
    with Model(chat_bundle, level=level, threads=2) as native:
        assert '"adapters": true' in native.info
        alone = {prompt: native.generate(prompt, max_tokens=16).tokens for prompt in PROMPTS}
        held = {name: native.load_adapter(path) for name, path in files.items()}
        held["memory"] = native.load_adapter(files["plain"].read_bytes())
        for prompt in PROMPTS:  # what one adapter computed is not another's
            wanted = {name: said(model, prompt, name) for name in adapters}
            assert len({alone[prompt], *wanted.values()}) > 3
            for name, adapter in held.items():
                found = native.generate(prompt, max_tokens=16, adapter=adapter).tokens
                assert found == wanted["plain" if name == "memory" else name], (prompt, name)
            assert native.generate(prompt, max_tokens=16).tokens == alone[prompt] == said(model, prompt, None)
        messages = [{"role": "user", "content": "Hello"}]
        wanted = model.generate(model.chat_ids(messages), adapter="dora", max_tokens=9).tokens
        assert native.chat(messages, max_tokens=9, adapter=held["dora"]).tokens == wanted
        for adapter in held.values():
            native.free_adapter(adapter)


def stored(rng: np.random.Generator, kind: str, values: np.ndarray) -> TensorView:
    """A matrix of random blocks, or these values as 16-bit floats."""
    if DTYPES[kind].quantised:
        return packed(rng, kind, values.shape)
    made = pack(values, kind)
    return TensorView(made.dtype, made.shape, made.data)


@pytest.mark.parametrize(("kind", "compute"), [("q8_0", None), ("q4_0", "f32"), ("f16", "bf16"), ("bf16", "f16")])
def test_in_every_arithmetic(kind: str, compute: str | None, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = {**CONFIG, **sizes, "head_dim": 16}
    views = {
        name: stored(rng, kind, value) if value.ndim > 1 else TensorView.of(value)
        for name, value in tiny.weights(config).items()
    }
    path = tmp_path / "m.gguf"
    write_gguf(path, gguf_tensors(config, views), {**gguf_from_config(config), **tokenizer_keys()})
    folder = tiny_adapters.write_adapter(tmp_path / "a", config, {**tiny_adapters.PEFT, "use_dora": True}, "f16")
    bundle = export(str(path), tmp_path / "b.weft", compute=compute, adapters=True).path
    file = export_adapter(str(path), folder, tmp_path / "a.safetensors").path
    model = weft.load(str(path), compute=compute or "int8", threads=1, draft="none")
    model.adapters.load("a", folder)
    with Model(bundle) as native:
        adapter = native.load_adapter(file)
        for prompt in PROMPTS[:3]:
            assert native.generate(prompt, max_tokens=16, adapter=adapter).tokens == said(model, prompt, "a")
            assert native.generate(prompt, max_tokens=16).tokens == said(model, prompt, None)
        native.free_adapter(adapter)


@pytest.mark.parametrize("compute", ["f32", "bf16", "bf16x3", "f16", "int8"])
def test_vectors_with_an_adapter_have_the_bits_of_python(
    st_folder: Path, compute: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**tiny_adapters.PEFT_BERT, "target_modules": tiny_adapters.BERT_ALL}
    folder = tiny_adapters.write_adapter(tmp_path / "a", BERT, settings, "f32")
    bundle = export(str(st_folder), tmp_path / "b.weft", compute=compute, adapters=True).path
    plain = export(str(st_folder), tmp_path / "p.weft", compute=compute).path
    file = export_adapter(str(st_folder), folder, tmp_path / "a.safetensors").path
    for level in levels_present() if compute == "f32" else levels_present()[-1:]:  # what it was planned for
        monkeypatch.setenv("WEFT_ISA", level)
        wanted = Embedder(str(st_folder), compute=compute, threads=1)
        wanted.adapters.load("a", folder)
        with Model(bundle, level=level, threads=2) as native, Model(plain, level=level) as before:
            adapter = native.load_adapter(file)
            for role in (None, "query"):
                vectors = wanted.encode(TEXTS, adapter="a", prompt_name=role)
                assert np.array_equal(native.embed(TEXTS, adapter=adapter, role=role), vectors)
            assert np.array_equal(native.embed(TEXTS), before.embed(TEXTS))
            assert not np.array_equal(native.embed(TEXTS), native.embed(TEXTS, adapter=adapter))
            native.free_adapter(adapter)


def test_an_adapter_may_be_freed_in_any_order(chat_bundle: Path, files: dict[str, Path]) -> None:
    with Model(chat_bundle) as native, Model(chat_bundle) as other:
        adapter = native.load_adapter(files["plain"])
        info = json.loads(native.adapter_info(adapter))
        assert (info["name"], info["rank"]) == ("plain", 4)
        assert info["sha256"] == open_safetensors(files["plain"]).metadata["sha256"]
        with pytest.raises(StatusError, match="another model") as error:
            other.generate("a", adapter=adapter)
        assert error.value.status == libweft.INPUT
        wanted = native.generate("Once", max_tokens=8, adapter=adapter).tokens
        for _ in range(300):  # more than there are indices
            native.free_adapter(native.load_adapter(files["dora"]))
        assert native.generate("Once", max_tokens=8, adapter=adapter).tokens == wanted
        held = [native.load_adapter(files["whole"]) for _ in range(254)]
        with pytest.raises(StatusError, match="255 adapters"):
            native.load_adapter(files["whole"])
    for one in (adapter, *held, None):  # the model is closed
        native.free_adapter(one)


def rewritten(change: Callable[[dict[str, Any]], object], digest: bool = True) -> Callable[[bytes], bytes]:
    """The file with its header changed, and the digest put right."""

    def edit(data: bytes) -> bytes:
        size = struct.unpack("<Q", data[:8])[0]
        header, rest = json.loads(data[8 : 8 + size]), data[8 + size :]
        if digest:
            header["__metadata__"]["sha256"] = sha256(rest).hexdigest()
        change(header)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + rest

    return edit


def first(header: dict[str, Any], what: str) -> dict[str, Any]:
    return next(entry for name, entry in header.items() if name.endswith(what))


def renamed(header: dict[str, Any]) -> None:
    for name in [name for name in header if "layers.0" in name]:
        header[name.replace("layers.0", "layers.7")] = header.pop(name)


def unknown(header: dict[str, Any]) -> None:
    name = next(name for name in header if name.endswith(".down"))
    header[name.replace(".down", ".sideways")] = header.pop(name)


def not_finite(data: bytes) -> bytes:
    size = struct.unpack("<Q", data[:8])[0]
    return rewritten(lambda _: None)(data[: 8 + size] + struct.pack("<f", float("inf")) + data[12 + size :])


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], int, str]] = {
    "nothing": (lambda _: b"", libweft.FORMAT, "no header"),
    "half a header": (lambda data: data[:50], libweft.FORMAT, "header"),
    "a flipped bit": (lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:], libweft.FORMAT, "damaged"),
    "a short file": (lambda data: data[:-8], libweft.FORMAT, "damaged"),
    "a number that is not finite": (not_finite, libweft.FORMAT, "not finite"),
    "a later version": (
        rewritten(lambda h: h["__metadata__"].update(weft_adapter="2")),
        libweft.UNSUPPORTED,
        "version",
    ),
    "a file of another tool": (rewritten(lambda h: h["__metadata__"].pop("weft_adapter")), libweft.FORMAT, "--alone"),
    "another base": (rewritten(lambda h: h["__metadata__"].update(base="0" * 64)), libweft.INPUT, "another model"),
    "another table": (rewritten(renamed), libweft.FORMAT, "layers.7"),
    "another rank": (rewritten(lambda h: first(h, ".scale").update(shape=[3])), libweft.FORMAT, "shape"),
    "another shape": (
        rewritten(lambda h: first(h, ".down").update(shape=first(h, ".down")["shape"][::-1])),
        libweft.FORMAT,
        "do not fit",
    ),
    "a tensor outside": (
        rewritten(lambda h: first(h, ".up").update(data_offsets=[1 << 40, (1 << 40) + 4])),
        libweft.FORMAT,
        "outside",
    ),
    "a type": (rewritten(lambda h: first(h, ".up").update(dtype="F64")), libweft.FORMAT, "F64"),
    "an unknown part": (rewritten(unknown), libweft.FORMAT, "part of an adapter"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_adapter_is_refused(chat_bundle: Path, files: dict[str, Path], damage: str) -> None:
    change, status, words = DAMAGE[damage]
    data = files["plain"].read_bytes()
    with Model(chat_bundle) as native:
        with pytest.raises(StatusError, match=words) as error:
            native.load_adapter(change(data))
        assert error.value.status == status, error.value
        native.free_adapter(native.load_adapter(b"" + data))  # at another address, and the model still works


def test_a_file_that_is_not_there(chat_bundle: Path, tmp_path: Path) -> None:
    with Model(chat_bundle) as native, pytest.raises(StatusError) as error:
        native.load_adapter(tmp_path / "none.safetensors")
    assert error.value.status == libweft.NOT_FOUND


def test_a_bundle_without_room_says_so(chat_model: Path, files: dict[str, Path], tmp_path: Path) -> None:
    bundle = export(str(chat_model), tmp_path / "plain.weft").path
    with Model(bundle) as native:
        assert '"adapters": false' in native.info
        with pytest.raises(StatusError, match="--adapters") as error:
            native.load_adapter(files["plain"])
        assert error.value.status == libweft.UNSUPPORTED


def test_the_base_of_an_adapter_is_its_weights(chat_model: Path, adapters: dict[str, Path], tmp_path: Path) -> None:
    """Not their files, the arithmetic or the longest text."""
    bundle = export(str(chat_model), tmp_path / "a.weft", adapters=True, shard_bytes=1 << 12, context=64).path
    other = write_chat_model(tmp_path / "other.gguf", model={**CONFIG, "num_hidden_layers": 1})
    done = export_adapter(str(chat_model), adapters["plain"], tmp_path / "a.safetensors")
    assert json.loads((bundle / "manifest.json").read_text())["adapters"]["base"] == done.base
    with pytest.raises(InputError, match="exists"):
        export_adapter(str(chat_model), adapters["plain"], done.path)
    for overwrite in (False, True):
        with pytest.raises(InputError, match="is a folder"):
            export_adapter(str(chat_model), adapters["plain"], tmp_path, overwrite=overwrite)
    again = export_adapter(str(chat_model), adapters["plain"], done.path, overwrite=True)
    assert again.digest == done.digest
    mine = adapters["plain"] / "adapter_model.safetensors"
    for path, content in ((tmp_path / "notes.txt", b"mine"), (mine, mine.read_bytes())):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not an adapter that was written alone"):
            export_adapter(str(chat_model), adapters["plain"], path, overwrite=True)
        assert path.read_bytes() == content
    with pytest.raises(NotFoundError, match=r"has no adapter_config\.json; name the folder"):
        export_adapter(str(chat_model), tmp_path, tmp_path / "b.safetensors")
    with pytest.raises(WeftError, match="no module"):
        export_adapter(str(other), adapters["plain"], tmp_path / "b.safetensors")
    assert not (tmp_path / "b.safetensors").exists()


def test_models_that_bundles_do_not_have(tmp_path: Path, adapters: dict[str, Path]) -> None:
    folder = tiny.write_folder(tmp_path / "m", tiny.CONFIGS["mixtral"])
    with pytest.raises(UnsupportedError, match="experts"):
        export_adapter(str(folder), adapters["plain"], tmp_path / "a.safetensors")
