"""Every embedding model of the catalogue, tiny and random but laid out as its repository is, gives the vectors of
sentence-transformers; so do other poolings, prompts that are not pooled, and other architectures."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_adapters
from test_gguf_models import write_model
from tiny_catalogue import CATALOGUE, OTHERS, PROMPT, QWEN, TEXTS, write_layout
from tiny_gguf import gguf_from_config, gguf_tensors

import weft
from weft.embed import service
from weft.embed.recipe import embeds
from weft.errors import FormatError, InputError, TooLongError, UnsupportedError
from weft.runtime import open_checkpoint
from weft.weights import write_gguf
from weft.weights.files import TensorView
from weft.weights.sources import Located, catalog

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "embed" / "tiny-catalogue.npz")
LIMIT = 1e-5


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A model of the catalogue by its name, in place of which its tiny layout is found."""

    def locate(spec: str, **_: object) -> Located:
        folder = write_layout(tmp_path / spec, CATALOGUE[spec])
        return Located(folder, spec, catalog.find(spec), "test", None)

    monkeypatch.setattr(service, "locate", locate)
    return lambda name, **options: weft.Embedder(name, **options)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """The largest of 1 - cosine over the rows, or of the difference of their lengths."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    sizes = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
    return float(max(np.max(1 - (a * b).sum(1) / sizes[0] / sizes[1]), np.max(np.abs(sizes[0] / sizes[1] - 1))))


def check(embedder: weft.Embedder, name: str) -> None:
    assert distance(embedder.encode(TEXTS), GOLDEN[f"{name}/plain"]) <= LIMIT
    for role, encode in (("query", embedder.encode_query), ("document", embedder.encode_document)):
        key = f"{name}/{role}" if f"{name}/{role}" in GOLDEN else f"{name}/plain"
        assert distance(encode(TEXTS), GOLDEN[key]) <= LIMIT, role
        assert np.array_equal(encode(TEXTS), np.stack([encode(text) for text in TEXTS]))  # in any batch


def test_the_layouts_are_those_of_the_catalogue() -> None:
    assert set(CATALOGUE) == {entry.name for entry in catalog.entries() if entry.kind == "embed"}


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_model_of_the_catalogue_gives_the_vectors_of_sentence_transformers(named, name: str) -> None:
    check(named(name, truncate="head"), name)


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_model_of_the_catalogue_has_its_limit(named, name: str) -> None:
    entry = catalog.find(name)
    embedder = named(name)
    assert entry is not None and embedder.max_tokens == entry.max_tokens
    with pytest.raises(TooLongError, match=f"the model takes {entry.max_tokens}"):
        embedder.encode("cat " * 9000)
    assert embedder.recipe.matryoshka == name.startswith("Qwen3")


@pytest.mark.parametrize("entry", [True, False])
def test_a_decoder_that_embeds_is_known_as_one(tmp_path: Path, entry: bool) -> None:
    folder = write_layout(tmp_path / "model", QWEN)
    known = catalog.find("Qwen3-Embedding-0.6B") if entry else None
    assert embeds(open_checkpoint(folder), known)
    (folder / "modules.json").unlink()
    assert embeds(open_checkpoint(folder), known) == entry


@pytest.mark.parametrize(("name", "pooling"), [("bert", "cls"), ("nomic_bert", "mean"), ("qwen3", "last")])
def test_a_gguf_file_says_how_it_pools(tmp_path: Path, name: str, pooling: str) -> None:
    cfg = {**tiny.CONFIGS[name], "pooling_type": pooling}
    path, folder = write_model(tmp_path / "model.gguf", cfg), tiny.write_folder(tmp_path / "model", cfg)
    embedder, other = weft.Embedder(str(path)), weft.Embedder(str(folder), pooling=pooling, normalise=True)
    assert embeds(open_checkpoint(path), None) and embedder.recipe.source == "GGUF metadata"
    ids = [tiny.token_ids(cfg, length) for length in (1, 7, 130)]
    assert np.array_equal(embedder.encode_ids(ids), other.encode_ids(ids))


def nomic_file(path: Path, **changed: Any) -> Path:
    """A tiny nomic-bert file with the tokenizer keys of nomic-embed-text-v1.5: [CLS] is bos, and there is no cls."""
    cfg = {**tiny.NOMIC_BERT, "pooling_type": "mean"}
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁the", "▁cat", "s", *(f"[unused{i}]" for i in range(20))]
    tokens = {"model": "bert", "tokens": words, "token_type": [3] * 5 + [1] * (len(words) - 5)}
    tokens |= {"bos_token_id": 2, "eos_token_id": 3, "unknown_token_id": 1, "seperator_token_id": 3, **changed}
    views = {name: TensorView.of(values) for name, values in tiny.first_nomic(cfg)[1].items()}
    named = {f"tokenizer.ggml.{key}": value for key, value in tokens.items() if value is not None}
    write_gguf(path, gguf_tensors(cfg, views), {**gguf_from_config(cfg), **named})
    return path


def test_a_nomic_file_without_a_cls_token_is_tokenized_by_its_bos(tmp_path: Path) -> None:
    embedder = weft.Embedder(str(nomic_file(tmp_path / "nomic.gguf")))
    assert embedder.token_ids(["the cats"]).ids[0].tolist() == [2, 5, 6, 7, 3]
    assert np.array_equal(embedder.encode(["the cats"]), embedder.encode_ids([np.array([2, 5, 6, 7, 3])]))


def test_a_file_whose_texts_cannot_be_tokenized_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    words = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "▁the", "▁cat", "s"]
    given = {"tokens": words, "token_type": [3] * 5 + [1] * 3, "bos_token_id": None}
    with pytest.raises(FormatError, match=r"cls_token_id is missing, and so is .*bos_token_id and a token"):
        weft.Embedder(str(nomic_file(tmp_path / "nomic.gguf", **given)))


@pytest.mark.parametrize("name", ["Qwen3-Embedding-0.6B", "bge-small-en-v1.5", "multilingual-e5-base"])
@pytest.mark.parametrize("compute, limit", [("f16", 1e-4), ("bf16", 1e-3), ("bf16x3", 1e-6), ("int8", 2e-2)])
def test_other_numbers_are_near_and_the_same_in_any_batch(named, name: str, compute: str, limit: float) -> None:
    embedder = named(name, truncate="head", compute=compute)
    made = embedder.encode_query(TEXTS)
    assert distance(made, GOLDEN[f"{name}/query"]) <= limit
    assert np.array_equal(made, np.stack([embedder.encode_query(text) for text in TEXTS]))


@pytest.mark.parametrize("name", [name for name in OTHERS if name != "nomic_bert"])
def test_a_folder_gives_the_vectors_of_sentence_transformers(tmp_path: Path, name: str) -> None:
    check(weft.Embedder(str(write_layout(tmp_path / "model", OTHERS[name])), truncate="head"), name)


def test_a_prompt_of_any_name_is_found(tmp_path: Path) -> None:
    embedder = weft.Embedder(str(write_layout(tmp_path / "model", OTHERS["nomic_bert"])), truncate="head")
    assert distance(embedder.encode(TEXTS), GOLDEN["nomic_bert/plain"]) <= LIMIT
    made = embedder.encode(TEXTS, prompt_name="search_query")
    assert distance(made, GOLDEN["nomic_bert/search_query"]) <= LIMIT


def test_a_prompt_of_the_callers_is_not_pooled_either(tmp_path: Path) -> None:
    embedder = weft.Embedder(str(write_layout(tmp_path / "model", OTHERS["without-prompt-mean"])), truncate="head")
    assert np.array_equal(embedder.encode(TEXTS, prompt=PROMPT), embedder.encode_query(TEXTS))
    assert distance(embedder.encode(TEXTS, prompt="x"), embedder.encode_query(TEXTS)) > LIMIT


def test_a_prompt_stays_where_a_text_loses_its_beginning(tmp_path: Path) -> None:
    """Of a long text its end is kept, with the prompt before it, which is not pooled."""
    embedder = weft.Embedder(str(write_layout(tmp_path / "model", OTHERS["without-prompt-mean"])), truncate="tail")
    (some,) = embedder.token_ids(["cat " * 600], prompt=PROMPT).ids
    prompt = embedder.tokenizer.encode(PROMPT)[:-1]
    assert (len(some), some.skip) == (512, len(prompt)) and some.ids[: len(prompt)].tolist() == prompt
    (some,) = embedder.token_ids(["cat"], prompt=PROMPT).ids
    assert some.skip == len(prompt)


def test_the_ending_is_there_once(named) -> None:
    tokenizer = named("Qwen3-Embedding-0.6B").tokenizer
    end = tokenizer.id("<|endoftext|>")
    ids = tokenizer.encode("cat")
    assert ids[-1] == end and ids.count(end) == 1


def test_the_ending_is_appended_where_the_files_do_not_say_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = write_layout(tmp_path / "model", QWEN)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer, "post_processor": None}))
    entry = catalog.find("Qwen3-Embedding-0.6B")
    monkeypatch.setattr(service, "locate", lambda *_, **__: Located(folder, "q", entry, "test", None))
    check(weft.Embedder("q"), "Qwen3-Embedding-0.6B")


@pytest.mark.parametrize("name", ["decoder-mean", "modernbert"])
def test_adapters_change_the_vectors_of_who_names_them(tmp_path: Path, name: str) -> None:
    layout = OTHERS[name]
    embedder = weft.Embedder(str(write_layout(tmp_path / "model", layout)), truncate="head")
    plain = embedder.encode(TEXTS)
    targets = ["q_proj", "down_proj"] if name == "decoder-mean" else ["attn.Wo", "mlp.Wo"]
    settings = {**tiny_adapters.PEFT_BERT, "target_modules": targets}
    adapter = tiny_adapters.write_adapter(tmp_path / "a", layout.config, settings, "f32", 1)
    embedder.adapters.load("a", adapter)
    adapted = embedder.encode(TEXTS, adapter="a")
    assert np.abs(adapted - plain).max() > 1e-3 and np.array_equal(embedder.encode(TEXTS), plain)
    assert np.array_equal(adapted, np.stack([embedder.encode(text, adapter="a") for text in TEXTS]))


@pytest.mark.parametrize("name", ["Qwen3-Embedding-0.6B", "bge-small-en-v1.5"])
def test_no_tokens_have_no_first_or_last_one(named, name: str) -> None:
    some = [np.asarray([5, 6], np.int32), np.empty(0, np.int32), np.asarray([7], np.int32)]
    with pytest.raises(InputError, match=r"ids 1 must be a sequence of one or more integers, not ndarray int32 \(0,\)"):
        named(name).encode_ids(some)
    with pytest.raises(InputError, match="an empty sequence has no"):
        named(name)._encoder.vectors(some)


def test_a_weighted_mean_without_the_prompt_is_refused(tmp_path: Path) -> None:
    folder = write_layout(tmp_path / "model", OTHERS["pooled-weightedmean"])
    pooling = {"pooling_mode": "weightedmean", "include_prompt": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    with pytest.raises(UnsupportedError, match="include_prompt must be true for pooling_mode weightedmean"):
        weft.Embedder(str(folder))


@pytest.mark.parametrize(("key", "value"), [("is_matryoshka", True), ("matryoshka_dimensions", [8, 16])])
def test_a_config_may_say_that_vectors_may_be_cut(tmp_path: Path, key: str, value: object) -> None:
    folder = write_layout(tmp_path / "model", CATALOGUE["bge-small-en-v1.5"])
    assert not weft.Embedder(str(folder)).recipe.matryoshka
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    assert weft.Embedder(str(folder)).recipe.matryoshka
