"""What callers and model folders may say: the rest is refused by name, and nothing is taken for something else."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_st import PROMPTS, TEXTS, write_st_folder

import weft
from weft.embed import Limits
from weft.embed.inputs import similarities
from weft.errors import FormatError, InputError, TooLongError, UnsupportedError

LONG = "the cat sat on the mat and one two three " * 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_st_folder(tmp_path / "model")


def edit(path: Path, **changed: object) -> None:
    before = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({k: v for k, v in {**before, **changed}.items() if v is not None}))


def test_a_prompt_that_nobody_has_is_refused(tiny_embedder: weft.Embedder) -> None:
    with pytest.raises(InputError, match=r"'query', 'document'.*got 'qeury'"):
        tiny_embedder.encode("cat", prompt_name="qeury")
    for role in ("passage", "corpus"):  # a role, whether or not the model has a prompt for it
        assert np.array_equal(tiny_embedder.encode("cat", prompt_name=role), tiny_embedder.encode("cat"))
    with pytest.raises(InputError, match="prompt must be a string: got 5"):
        tiny_embedder.encode("cat", prompt=5)


def test_prompts_may_be_given(tiny_folder: Path, tiny_embedder: weft.Embedder) -> None:
    embedder = weft.Embedder(str(tiny_folder), prompts={"query": "one two "})
    assert np.array_equal(embedder.encode_query("cat"), tiny_embedder.encode("cat", prompt="one two "))
    assert np.array_equal(embedder.encode_document("cat"), tiny_embedder.encode_document("cat"))
    assert embedder.fingerprint.differences(tiny_embedder.fingerprint) == ["prompts"]
    with pytest.raises(InputError, match="prompts must be"):
        weft.Embedder(str(tiny_folder), prompts={"query": 5})  # type: ignore[dict-item]


@pytest.mark.parametrize("mode", ["head", "tail"])
def test_a_text_is_cut_and_its_prompt_is_not(tiny_embedder: weft.Embedder, mode: str) -> None:
    tokenizer = tiny_embedder.tokenizer
    prompt, text = (tokenizer.encode(some, add_special=False) for some in (PROMPTS["query"], LONG))
    front, back = tokenizer.encode("")
    room = tiny_embedder.max_tokens - 2 - len(prompt)
    kept = text[:room] if mode == "head" else text[-room:]
    found = tiny_embedder.token_ids([LONG], prompt_name="query", truncate=mode)
    assert found.ids[0].tolist() == [front, *prompt, *kept, back]
    assert found.dropped == [len(text) - room]


@pytest.mark.parametrize("mode", ["head", "tail", "chunk"])
def test_a_prompt_that_leaves_no_room_is_an_error(tiny_embedder: weft.Embedder, mode: str) -> None:
    with pytest.raises(TooLongError, match="the prompt has"):
        tiny_embedder.encode("cat", prompt=LONG, truncate=mode)


NOT_TEXTS: list[Any] = [None, 5, b"cat", {"cat"}, {"cat": 1}, [None], ["cat", 5], [b"cat"]]


@pytest.mark.parametrize("given", NOT_TEXTS, ids=repr)
def test_what_is_no_list_of_texts_is_refused(tiny_embedder: weft.Embedder, given: Any) -> None:
    calls: list[Callable[[Any], Any]] = [
        tiny_embedder.encode,
        tiny_embedder.token_ids,
        lambda texts: list(tiny_embedder.encode_stream(texts)),
        lambda texts: tiny_embedder.rank("a", texts),
    ]
    for call in calls:
        with pytest.raises(InputError, match=r"^\[embed\] (text|document)"):
            call(given)


def test_one_string_is_no_list_of_its_letters(tiny_embedder: weft.Embedder) -> None:
    with pytest.raises(InputError, match="documents must be a list of strings, not one string"):
        tiny_embedder.rank("a", "cat")
    with pytest.raises(InputError, match="texts must be a list of strings, not one string"):
        next(tiny_embedder.encode_stream("cat"))
    with pytest.raises(InputError, match="query must be one string"):
        tiny_embedder.rank(["a", "b"], TEXTS)  # type: ignore[arg-type]
    assert np.array_equal(tiny_embedder.encode(np.array(TEXTS)), tiny_embedder.encode(TEXTS))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "word"),
    [({"dimensions": "64"}, "dimensions"), ({"precision": "int8"}, "compute.*output_dtype"), ({"truncate": 5}, "5")],
)
def test_options_of_another_kind_are_named(tiny_folder: Path, options: dict, word: str) -> None:
    with pytest.raises(InputError, match=word):
        weft.Embedder(str(tiny_folder), **options)


def test_counts_are_whole_numbers(tiny_embedder: weft.Embedder) -> None:
    for wrong in (0, -1, 1.5, "3", True):
        with pytest.raises(InputError, match="batch_tokens"):
            tiny_embedder.encode("cat", batch_tokens=wrong)
        with pytest.raises(InputError, match="top_k"):
            tiny_embedder.rank("cat", TEXTS, wrong)  # type: ignore[arg-type]


def test_a_stream_names_a_text_by_its_place_in_it(tiny_folder: Path) -> None:
    embedder = weft.Embedder(str(tiny_folder), limits=Limits(text_bytes=20_000))
    before = ["cat"] * 1030
    for texts, error in (
        ([*before, LONG], TooLongError),
        ([*before, 5], InputError),
        ([*before, "x" * 20_001], TooLongError),
    ):
        with pytest.raises(error, match=r"text(s\[)? ?1030"):
            list(embedder.encode_stream(texts))  # type: ignore[arg-type]
    with pytest.raises(TooLongError) as caught:
        embedder.encode(["cat", "x" * 20_001])
    assert caught.value.index == 1


def test_bits_compare_as_ones_and_minus_ones(tiny_embedder: weft.Embedder) -> None:
    vectors, bits = tiny_embedder.encode(TEXTS), tiny_embedder.encode(TEXTS, output_dtype="binary")
    signs = np.where(vectors >= 0, 1.0, -1.0)
    expected = signs @ signs.T / signs.shape[1]
    assert np.allclose(tiny_embedder.similarity(bits, bits), expected, atol=1e-6)
    assert np.allclose(similarities(bits, bits, "euclidean", lambda: signs.shape[1])[0, 0], 0)
    with pytest.raises(InputError, match="scale of each"):
        similarities(np.ones((1, 4), np.int8), np.ones((1, 4), np.int8), "dot", lambda: 4)


@pytest.mark.parametrize("measure", ["cosine", "dot", "euclidean", "manhattan"])
def test_a_pair_has_the_same_similarity_alone_and_among_many(measure: str) -> None:
    x = np.random.default_rng(6).normal(size=(40, 96)).astype(np.float32)
    together = similarities(x, x, measure, lambda: 96)
    alone = [[similarities(a, b, measure, lambda: 96)[0, 0] for b in x] for a in x]
    assert np.array_equal(together, np.array(alone, np.float32))
    wide = x.astype(np.float64)
    expected = {
        "cosine": wide @ wide.T / np.outer(np.linalg.norm(wide, axis=1), np.linalg.norm(wide, axis=1)),
        "dot": wide @ wide.T,
        "euclidean": -np.linalg.norm(wide[:, None] - wide[None], axis=2),
        "manhattan": -np.abs(wide[:, None] - wide[None]).sum(axis=2),
    }[measure]
    assert np.allclose(together, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("wrong", [None, ["a"], [[1.0], [1.0, 2.0]], np.ones((2, 2, 2)), []], ids=repr)
def test_what_is_no_vector_does_not_compare(tiny_embedder: weft.Embedder, wrong: Any) -> None:
    with pytest.raises(InputError, match="similarity"):
        tiny_embedder.similarity(wrong, wrong)


def test_cancelling_stops_the_work(tiny_folder: Path) -> None:
    """The thread that embeds makes no step after the one in hand, and a cache has what was made."""
    embedder = weft.Embedder(str(tiny_folder), threads=1, cache="memory")
    real, steps, began = embedder._encoder.vectors_each, 0, threading.Event()

    def slowly(parts: list) -> Iterator[np.ndarray]:
        nonlocal steps
        for made in real(parts):
            steps += 1
            began.set()
            time.sleep(0.02)
            yield made

    embedder._encoder.vectors_each = slowly  # type: ignore[assignment]

    async def cancelled() -> None:
        task = asyncio.create_task(embedder.aencode([f"the cat {i}" for i in range(900)], batch_tokens=64))
        await asyncio.to_thread(began.wait)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())  # waits for the thread
    assert 0 < steps < 30
    embedder._encoder.vectors_each = real  # type: ignore[method-assign]
    assert embedder.embed(["the cat 0"]).cached == 1


def test_an_async_stream_gives_the_same(tiny_embedder: weft.Embedder) -> None:
    async def collected() -> list[np.ndarray]:
        return [vector async for vector in tiny_embedder.aencode_stream(iter(TEXTS * 300))]

    assert np.array_equal(np.stack(asyncio.run(collected())), tiny_embedder.encode(TEXTS * 300))


def test_settings_under_their_older_names_are_read(folder: Path) -> None:
    (folder / "sentence_bert_config.json").rename(folder / "sentence_xlm-roberta_config.json")
    assert weft.Embedder(str(folder)).max_tokens == 48
    edit(folder / "sentence_xlm-roberta_config.json", max_seq_length=None)
    assert weft.Embedder(str(folder)).max_tokens == 160  # the tokenizer's word
    edit(folder / "tokenizer_config.json", model_max_length=1e30)
    assert weft.Embedder(str(folder)).max_tokens == weft.Embedder(str(folder)).positions


def test_lower_case_is_made_before_the_tokenizer(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"] = None
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    cased = weft.Embedder(str(folder))
    edit(folder / "sentence_bert_config.json", do_lower_case=True)
    lowered = weft.Embedder(str(folder))
    text, prompt = "The CAT sat", "ONE "
    assert not np.array_equal(cased.encode(text), cased.encode(text.lower()))
    assert np.array_equal(lowered.encode(text, prompt=prompt), cased.encode(text.lower(), prompt=prompt.lower()))
    long = LONG.upper()
    for mode in ("tail", "chunk"):
        assert np.array_equal(lowered.encode(long, truncate=mode), cased.encode(LONG, truncate=mode))
    assert lowered.fingerprint.differences(cased.fingerprint) == ["tokenizer"]


def test_modules_in_an_order_that_means_something_else_are_refused(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([modules[i] for i in (0, 1, 3, 2)]))
    with pytest.raises(UnsupportedError, match="entry 3 is a Dense"):
        weft.Embedder(str(folder))


def test_a_default_prompt_must_be_one(folder: Path) -> None:
    edit(folder / "config_sentence_transformers.json", default_prompt_name="other")
    with pytest.raises(FormatError, match=r"default_prompt_name must be .*got 'other'"):
        weft.Embedder(str(folder))


def test_a_model_called_like_one_with_prompts_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_st_folder(tmp_path / "bge-small-en-v1.5-mine")
    with caplog.at_level(logging.WARNING, "weft.embed"):
        weft.Embedder(str(folder)).encode_query("a")
        assert caplog.text == ""  # it has prompts of its own
        (folder / "config_sentence_transformers.json").unlink()
        weft.Embedder(str(folder), prompts={}).encode_query("a")
        embedder = weft.Embedder(str(folder))
        embedder.encode("a")
        assert caplog.text == ""
        embedder.encode_query("a")
        embedder.encode_query("b")
    assert caplog.text.count("bge-small-en-v1.5 of the catalogue, which has that name, needs") == 1


def test_a_stream_keeps_to_the_limits_of_a_call(tiny_folder: Path) -> None:
    embedder = weft.Embedder(str(tiny_folder), limits=Limits(texts=4))
    assert len(list(embedder.encode_stream("the cat" for _ in range(10)))) == 10
    for wrong in ({"texts": "5"}, {"texts": 0}, {"text_bytes": 1.5}):
        with pytest.raises(InputError, match="a whole number from 1 on"):
            Limits(**wrong)  # type: ignore[arg-type]


def failing(count: int) -> Iterator[str]:
    yield from ("the cat" for _ in range(count))
    raise OSError("the disk is gone")


async def failing_later(count: int) -> Any:
    for text in failing(count):
        yield text


def test_what_was_read_is_embedded_before_reading_fails(tiny_embedder: weft.Embedder) -> None:
    found: list[np.ndarray] = []
    with pytest.raises(OSError, match="the disk is gone"):
        found.extend(tiny_embedder.encode_stream(failing(5)))
    assert len(found) == 5

    async def read(texts: Any) -> None:
        async for vector in tiny_embedder.aencode_stream(texts):
            found.append(vector)

    for texts in (failing(3), failing_later(4)):
        with pytest.raises(OSError, match="the disk is gone"):
            asyncio.run(read(texts))
    assert len(found) == 12


def test_texts_are_not_read_in_the_event_loop(tiny_embedder: weft.Embedder) -> None:
    readers: set[int] = set()

    def texts() -> Iterator[str]:
        for _ in range(3):
            readers.add(threading.get_ident())
            yield "the cat"

    async def read() -> int:
        return len([vector async for vector in tiny_embedder.aencode_stream(texts())])

    assert asyncio.run(read()) == 3 and threading.get_ident() not in readers


@pytest.mark.parametrize(
    "wrong", [[np.array([], np.int32)], [np.array([101.5, 102.0])], [101, 102], [[[1, 2]]], ["ab"]]
)
def test_ids_are_whole_numbers(tiny_embedder: weft.Embedder, wrong: Any) -> None:
    with pytest.raises(InputError, match=r"ids 0 must be a sequence of one or more integers"):
        tiny_embedder.encode_ids(wrong)


def test_lists_of_ids_are_as_good_as_arrays(tiny_embedder: weft.Embedder) -> None:
    ids = tiny_embedder.token_ids(TEXTS[:2]).ids
    assert np.array_equal(tiny_embedder.encode_ids([one.tolist() for one in ids]), tiny_embedder.encode_ids(ids))


@pytest.mark.parametrize(
    "options", [{"normalise": "false"}, {"normalise": 0}, {"matryoshka": "no"}, {"threads": 0}, {"threads": "2"}]
)
def test_yes_and_no_are_said_as_such(tiny_folder: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(options))} (is|must be .*got) {next(iter(options.values()))!r}"):
        weft.Embedder(str(tiny_folder), **options)


def test_roles_have_their_prompts_and_names_are_strings(tiny_embedder: weft.Embedder) -> None:
    for ask in (tiny_embedder.encode_query, tiny_embedder.encode_document):
        with pytest.raises(InputError, match=r"prompt_name cannot be set here.*use encode"):
            ask("cat", prompt_name="query")
    with pytest.raises(InputError, match=r"prompt_name cannot be set here.*use encode"):
        tiny_embedder.rank("cat", ["dog"], prompt_name="query")
    with pytest.raises(InputError, match="prompt_name must be a string"):
        tiny_embedder.encode("cat", prompt_name=["query"])  # type: ignore[arg-type]


def test_half_a_surrogate_pair_is_told_by_its_place(tiny_embedder: weft.Embedder) -> None:
    with pytest.raises(InputError, match=r"text 2 has half of a surrogate pair at character 3"):
        tiny_embedder.encode(["the cat", "naïve 🙂", "no \ud800"])


def test_no_vectors_have_no_similarities(tiny_embedder: weft.Embedder) -> None:
    none = tiny_embedder.encode([])
    assert tiny_embedder.similarity(none, tiny_embedder.encode(TEXTS)).shape == (0, len(TEXTS))


def test_bytes_are_told_that_they_are_no_text(tiny_embedder: weft.Embedder) -> None:
    with pytest.raises(InputError, match="texts must be strings, not bytes; decode"):
        tiny_embedder.encode(b"cat")  # type: ignore[arg-type]
