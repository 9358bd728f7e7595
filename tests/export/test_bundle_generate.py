"""Tokens from C are the tokens from Python: greedy and drawn with a seed, of every type that can be exported."""

import json
import threading
from pathlib import Path
from typing import Any

import libweft
import numpy as np
import pytest
import tiny
from libweft import Model, StatusError
from soaking import times
from test_low_bit import CONFIG as LOW_BIT
from test_low_bit import packed
from tiny_chat import tokenizer_keys, write_chat_model
from tiny_gguf import gguf_from_config, gguf_tensors

import weft
from weft.backends.cpu import levels_present
from weft.dtype import DTYPES
from weft.errors import InputError, UnsupportedError
from weft.export import export
from weft.weights import write_gguf
from weft.weights.files import TensorView
from weft.weights.safetensors import write_safetensors

PROMPTS = ("Once", "Once upon a time", "Once upon a", "x" * 700, "日本語 and <|im_end|> inside")
DRAWN = [
    {"temperature": 0.8, "top_k": 40, "top_p": 0.9},
    {"temperature": 1.0},
    {"temperature": 1.5, "top_p": 0.7},
    {"temperature": 0.7, "min_p": 0.2},
    {"temperature": 1.2, "top_k": 5, "repetition_penalty": 1.3},
    {"temperature": 3.0, "repetition_penalty": 1.1, "top_p": 0.5, "min_p": 0.01},
    {"temperature": 0.0, "repetition_penalty": 1.5},
]


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("chat") / "tiny.gguf")


@pytest.fixture(scope="module")
def chat_bundle(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(str(chat_model), tmp_path_factory.mktemp("bundle") / "chat.weft").path


def same(native: Model, model: weft.Model, prompt: str, **options: Any) -> None:
    said, wanted = native.generate(prompt, **options), model.generate(prompt, **options)
    assert said.tokens == wanted.tokens, (prompt, options)
    assert said.text == wanted.text
    assert (said.finish, said.prompt_tokens) == (wanted.finish_reason, wanted.usage.prompt_tokens)


@pytest.mark.parametrize("level", levels_present())
def test_greedy_text_is_that_of_python(
    chat_model: Path, chat_bundle: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_ISA", level)
    model = weft.load(str(chat_model), compute="f32", threads=1, draft="none")
    with Model(chat_bundle, level=level, threads=2) as native:
        for prompt in PROMPTS:  # some begin as the one before; 700 tokens take two steps
            same(native, model, prompt, max_tokens=24)


def test_drawn_tokens_are_those_of_python(chat_model: Path, chat_bundle: Path) -> None:
    model = weft.load(str(chat_model), compute="f32", threads=1)
    with Model(chat_bundle) as native:
        for seed, rules in enumerate(DRAWN):
            same(native, model, "Once upon", max_tokens=60, seed=seed * 12345678901, **rules)
            same(native, model, "Once upon", max_tokens=9, seed=(1 << 64) - 1 - seed, **rules)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a vocabulary so large that drawing sorts only a part of it, and logits that are far apart."""
    config = {**tiny.LLAMA, "vocab_size": 9000, "head_dim": 8, "max_position_embeddings": 256}
    tensors = tiny.weights(config)
    head = next(name for name in tensors if "lm_head" in name or "embed_tokens" in name)
    tensors[head] = (tensors[head] * np.float32(6)).astype(tensors[head].dtype)
    return write_tokenized(tmp_path_factory.mktemp("wide"), config, tensors)


def write_tokenized(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    golden = libweft.ROOT / "tests" / "golden" / "text" / "gpt2.json"
    files = {"config.json": config, "tokenizer.json": json.loads(golden.read_text(encoding="utf-8"))["tokenizer"]}
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value), encoding="utf-8")
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


@pytest.mark.soak
def test_draws_from_a_large_vocabulary(wide: Path, tmp_path: Path) -> None:
    bundle = export(str(wide), tmp_path / "w.weft").path
    model = weft.load(str(wide), compute="f32", threads=1)
    with Model(bundle) as native:
        for seed in range(times(200, 4)):
            for rules in DRAWN:
                same(native, model, "the cat", max_tokens=40, seed=seed, **rules)


# Types with layers that are not in bundles: mixtures of experts and recurrent layers.
EXPERTS = ("gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe")
RECURRENT = ("granitemoehybrid", "lfm2", "nemotron_h", "qwen3_next", "qwen3_5")


def decoders() -> list[str]:
    return [name for name, config in tiny.CONFIGS.items() if tiny.decodes(config)]


@pytest.mark.parametrize("name", decoders())
def test_every_type_is_exported_or_refused_by_name(name: str, tmp_path: Path) -> None:
    config = {**tiny.CONFIGS[name], "vocab_size": 512}
    if "vocab_size_per_layer_input" in config:
        config["vocab_size_per_layer_input"] = 512
    folder = write_tokenized(tmp_path, config, tiny.weights(config))
    if name.startswith((*EXPERTS, *RECURRENT)):
        with pytest.raises(UnsupportedError, match="experts" if name.startswith(EXPERTS) else "recurrent"):
            export(str(folder), tmp_path / "b.weft")
        return
    bundle = export(str(folder), tmp_path / "b.weft").path
    model = weft.load(str(folder), compute="f32", threads=1, draft="none")
    with Model(bundle) as native:
        same(native, model, "the cat sat on the mat, " * 4, max_tokens=8)


BLOCKS = (
    "q4_0",
    "q4_1",
    "q5_0",
    "q8_0",
    "q2_k",
    "q4_k",
    "q6_k",
    "iq4_nl",
    "iq4_xs",
    "iq3_s",
    "iq2_xs",
    "iq1_m",
    "tq2_0",
)


@pytest.mark.parametrize(
    ("kind", "compute"), [*((kind, None) for kind in (*BLOCKS, "f16", "bf16")), ("q4_k", "f32"), ("q4_1", "f32")]
)
def test_every_kind_of_weights(kind: str, compute: str | None, tmp_path: Path) -> None:
    config = {**LOW_BIT, "vocab_size": 258, "bos_token_id": 256, "eos_token_id": 257, "max_position_embeddings": 256}
    rng, values = np.random.default_rng(3), tiny.weights(config)

    def stored(value: np.ndarray) -> TensorView:
        if value.ndim == 1:
            return TensorView.of(value)
        if kind in ("f16", "bf16"):
            narrow = value.astype("<f2") if kind == "f16" else (value.astype("<f4").view("<u4") >> 16).astype("<u2")
            return TensorView(DTYPES[kind], value.shape, narrow.reshape(-1).view(np.uint8))
        return packed(rng, kind, value.shape)

    views = {name: stored(value) for name, value in values.items()}
    path = tmp_path / "m.gguf"
    write_gguf(path, gguf_tensors(config, views), {**gguf_from_config(config), **tokenizer_keys()})
    bundle = export(str(path), tmp_path / "b.weft", compute=compute).path
    used = json.loads((bundle / "manifest.json").read_text())["compute"]
    assert used == (compute or ("f32" if kind in ("f16", "bf16") else "int8"))
    model = weft.load(str(path), compute=used, threads=1, draft="none")
    with Model(bundle, threads=2) as native:
        same(native, model, "Once upon", max_tokens=8)


@pytest.mark.parametrize("compute", ["bf16", "f16"])
def test_rounded_activations(wide: Path, compute: str, tmp_path: Path) -> None:
    bundle = export(str(wide), tmp_path / "w.weft", compute=compute).path
    model = weft.load(str(wide), compute=compute, threads=1, draft="none")
    with Model(bundle) as native:
        same(native, model, "the cat", max_tokens=12)


def test_stop_strings_callbacks_and_threads_end_a_text(chat_bundle: Path) -> None:
    with Model(chat_bundle) as native:
        whole = native.generate("Once", max_tokens=24).text
        stop = whole[5:8]
        said = native.generate("Once", max_tokens=24, stops=["not there", stop])
        assert said.text == whole[: whole.index(stop)] and said.finish == "stop"
        seen: list[int] = []
        with pytest.raises(StatusError) as error:
            native.generate("Once", on_token=lambda id, _: (seen.append(id), len(seen) == 2)[1])
        assert error.value.status == libweft.CANCELLED and len(seen) == 2
        begun = threading.Event()
        library, handle = native.library, native.handle
        thread = threading.Thread(target=lambda: (begun.wait(60), library.weft_cancel(handle)))
        thread.start()
        with pytest.raises(StatusError) as error:
            native.generate("Once", max_tokens=0, on_token=lambda *_: (begun.set(), False)[1])
        thread.join()
        assert error.value.status == libweft.CANCELLED
        assert native.generate("Once", max_tokens=24).text == whole  # and the next call is not cancelled


def test_a_callback_may_not_call_its_own_model(chat_bundle: Path) -> None:
    with Model(chat_bundle) as native:
        errors: list[StatusError] = []

        def inside(_: int, __: str) -> bool:
            try:
                native.generate("a", max_tokens=1)
            except StatusError as error:
                errors.append(error)
            return False

        native.generate("Once", max_tokens=2, on_token=inside)
        assert [error.status for error in errors] == [libweft.INPUT] * len(errors) and errors


WRONG: list[tuple[dict[str, Any], int, str]] = [
    ({"temperature": -1.0}, libweft.INPUT, "temperature"),
    ({"temperature": float("nan")}, libweft.INPUT, "temperature"),
    ({"top_p": 1.5}, libweft.INPUT, "top_p"),
    ({"min_p": -0.1}, libweft.INPUT, "min_p"),
    ({"top_k": -1}, libweft.INPUT, "top_k"),
    ({"repetition_penalty": 0.0}, libweft.INPUT, "repetition_penalty"),
    ({"max_tokens": -1}, libweft.INPUT, "max_tokens"),
    ({"stops": [""]}, libweft.INPUT, "stop string"),
]


def test_what_cannot_be_is_refused(chat_bundle: Path, st_bundle: Path) -> None:
    with Model(chat_bundle, context=64) as native:
        assert '"context": 64' in native.info
        for options, status, said in WRONG:
            with pytest.raises(StatusError, match=said) as error:
                native.generate("a", **options)
            assert error.value.status == status
        with pytest.raises(StatusError, match="64") as error:
            native.generate("a" * 64)
        assert error.value.status == libweft.TOO_LONG
        with pytest.raises(StatusError, match="empty"):
            native.generate("")
        with pytest.raises(StatusError) as error:
            native.embed(["a"])
        assert error.value.status == libweft.UNSUPPORTED
        assert native.generate("a" * 60, max_tokens=0).finish == "length"  # the context is full
    with pytest.raises(StatusError, match="4096"):
        Model(chat_bundle, context=5000)
    with Model(st_bundle) as native, pytest.raises(StatusError, match="does not generate"):
        native.generate("a")


def test_a_shorter_context_is_exported(chat_model: Path, tmp_path: Path) -> None:
    bundle = export(str(chat_model), tmp_path / "b.weft", context=100).path
    with Model(bundle) as native:
        assert '"context": 100' in native.info
    with pytest.raises(InputError, match="4096"):
        export(str(chat_model), tmp_path / "c.weft", context=5000)


@pytest.mark.soak
def test_smollm2_says_the_same(smollm2: Path, smollm2_bundle: Path) -> None:
    model = weft.load(str(smollm2), compute="int8", context=512, draft="none", threads=1)
    with Model(smollm2_bundle, threads=1) as native:
        for prompt in SENTENCES[: times(20, 2)]:
            same(native, model, prompt, max_tokens=times(64, 10))
        same(native, model, SENTENCES[0], max_tokens=times(64, 10), temperature=0.8, top_p=0.9, seed=3)
        for question in QUESTIONS[: times(4, 1)]:
            messages = [{"role": "user", "content": question}]
            wanted = model.chat(messages, max_tokens=times(64, 8), temperature=0.0)
            got = native.chat(messages, max_tokens=times(64, 8))
            assert (got.text, got.tokens) == (wanted.text, wanted.tokens)


QUESTIONS = ["Name three colours.", "What is 2 + 2?", "Say <|im_end|> aloud.", "Write a haiku about rain."]
SENTENCES = [
    "The sea is",
    "Once upon a time",
    "def fibonacci(n):",
    "The capital of France is",
    "A short history of tea:",
    "Water boils at",
    "Dear Sir or Madam,",
    "1, 2, 3, 5, 8,",
    "The best way to learn a language is",
    "In 1969,",
    "Roses are red,",
    "import numpy as np",
    "Photosynthesis is",
    "The quick brown fox",
    "To be, or not to be,",
    "My favourite recipe begins with",
    "Le chat est",
    "Newton's second law says",
    "SELECT name FROM",
    "It was a dark and stormy night;",
]
