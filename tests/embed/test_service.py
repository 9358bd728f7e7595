"""The service: a vector for every text, in order; what was cut is told, and an interrupt loses nothing that is done."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tiny_st import PROMPTS, TEXTS

import weft
from weft.embed import SERVICE_LIMITS, EmbedInterrupted, Limits
from weft.embed.cutting import OVERLAP
from weft.errors import InputError, TooLongError, UnsupportedError

LONG = "the cat sat on the mat and one two three " * 30


def test_embed_says_how_each_vector_was_made(tiny_embedder: weft.Embedder) -> None:
    made = tiny_embedder.embed(["the cat", LONG], truncate="head")
    assert np.array_equal(made.vectors, tiny_embedder.encode(["the cat", LONG], truncate="head"))
    whole = len(tiny_embedder.tokenizer.encode(LONG))
    assert made.tokens.tolist() == [5, 48] and made.dropped.tolist() == [0, whole - 48]
    assert made.windows.tolist() == [1, 1] and made.fingerprint == tiny_embedder.info["fingerprint"]


def test_windows_overlap_and_their_mean_is_weighted_by_tokens(tiny_embedder: weft.Embedder) -> None:
    inner = tiny_embedder.tokenizer.encode(LONG, add_special=False)
    front, back = tiny_embedder.tokenizer.encode(LONG)[:1], tiny_embedder.tokenizer.encode(LONG)[-1:]
    room = 46
    stride = room - min(OVERLAP, room // 2)
    parts = [inner[start : start + room] for start in range(0, len(inner), stride)]
    parts = parts[: next(i for i in range(len(parts)) if i * stride + room >= len(inner)) + 1]
    assert sum(map(len, parts)) > len(inner) and parts[-1][-1] == inner[-1]
    ids = [np.array([*front, *part, *back], np.int32) for part in parts]
    vectors, weights = tiny_embedder.encode_ids(ids).astype(np.float64), np.array([len(i) for i in ids])
    mean = (vectors * weights[:, None]).sum(0) / weights.sum()
    made = tiny_embedder.embed([LONG, "the cat"], truncate="chunk")
    assert np.abs(made.vectors[0] - mean / np.linalg.norm(mean)).max() <= 1e-6
    assert made.windows.tolist() == [len(parts), 1] and made.dropped.tolist() == [0, 0]
    assert made.tokens.tolist() == [int(weights.sum()), 5]
    assert np.array_equal(made.vectors[1], tiny_embedder.encode("the cat"))  # one that fits is as always


def test_every_window_has_the_prompt(tiny_embedder: weft.Embedder) -> None:
    sequences = tiny_embedder._cutter.sequences([LONG], PROMPTS["query"], "chunk")
    prompt = tiny_embedder.tokenizer.encode(PROMPTS["query"], add_special=False)
    assert len(sequences.ids) > 2 and all(list(ids[1 : 1 + len(prompt)]) == prompt for ids in sequences.ids)
    assert all(len(ids) <= 48 for ids in sequences.ids)
    with pytest.raises(TooLongError, match="prompt"):
        tiny_embedder.encode(LONG, prompt="the cat " * 60, truncate="chunk")


def test_a_text_one_token_too_long_has_two_windows(tiny_embedder: weft.Embedder) -> None:
    text = "the " * 47
    assert len(tiny_embedder.tokenizer.encode(text)) == 49
    assert tiny_embedder.embed(text, truncate="chunk").windows.tolist() == [2]
    assert tiny_embedder.embed("the " * 46, truncate="chunk").windows.tolist() == [1]


def test_a_model_is_a_name_or_a_path_and_says_which_it_is(tiny_folder: Path) -> None:
    for wrong in (None, 5, b"model"):
        with pytest.raises(InputError, match="model must be a name or a path: got"):
            weft.Embedder(wrong)  # type: ignore[arg-type]
    assert repr(weft.Embedder(tiny_folder)) == f"<weft.Embedder {tiny_folder}: 24 dimensions, 48 tokens, f32>"


def test_the_longest_input_may_be_set(tiny_folder: Path) -> None:
    model = weft.Embedder(str(tiny_folder))
    before = model.at(None)
    model.max_tokens = 16
    assert model.info["max_tokens"] == 16 and before.max_tokens == 48
    assert np.array_equal(model.encode("the cat"), before.encode("the cat"))
    with pytest.raises(TooLongError, match="16"):
        model.encode("the " * 20)


def test_vectors_are_cut_then_of_length_one(wide_folder: Path) -> None:
    whole, cut = weft.Embedder(str(wide_folder)), weft.Embedder(str(wide_folder), dimensions=32)
    vectors = whole.encode(TEXTS)[:, :32]
    expected = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert cut.dimension == 32 and np.abs(cut.encode(TEXTS) - expected).max() <= 1e-6
    assert np.array_equal(whole.at(32).encode(TEXTS), cut.encode(TEXTS))
    assert np.array_equal(cut.at(None).encode(TEXTS), whole.encode(TEXTS))
    prints = {str(e.fingerprint) for e in (whole, cut, whole.at(33))}
    assert len(prints) == 3 and str(whole.at(32).fingerprint) == str(cut.fingerprint)  # INV-1
    own = weft.Embedder(str(wide_folder), dimensions=32, normalise=False)
    assert np.abs(own.encode(TEXTS) - own.at(None).encode(TEXTS)[:, :32]).max() == 0


@pytest.mark.parametrize("dimensions", [0, -1, 31, 37, 1000])
def test_dimensions_have_bounds(wide_folder: Path, dimensions: int) -> None:
    with pytest.raises(InputError, match="32 to 36"):
        weft.Embedder(str(wide_folder), dimensions=dimensions)


def test_only_models_that_say_so_are_cut(tiny_folder: Path) -> None:
    with pytest.raises(UnsupportedError, match="not trained for shorter vectors"):
        weft.Embedder(str(tiny_folder), dimensions=23)
    assert weft.Embedder(str(tiny_folder), dimensions=24).dimension == 24


def test_the_environment_says_how_many_dimensions(wide_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, dimension in (("", 36), ("33", 33)):
        monkeypatch.setenv("WEFT_EMBED_DIM", text)
        assert weft.Embedder(str(wide_folder)).dimension == dimension
    assert weft.Embedder(str(wide_folder), dimensions=34).dimension == 34
    monkeypatch.setenv("WEFT_EMBED_DIM", "many")
    with pytest.raises(InputError, match="WEFT_EMBED_DIM"):
        weft.Embedder(str(wide_folder))


def test_output_types_are_their_formulas(tiny_embedder: weft.Embedder) -> None:
    plain = tiny_embedder.encode(TEXTS)
    assert np.array_equal(tiny_embedder.encode(TEXTS, output_dtype="f16"), plain.astype(np.float16))
    made = tiny_embedder.embed(TEXTS, output_dtype="int8")
    assert made.vectors.dtype == np.int8 and made.scales is not None
    assert np.allclose(made.scales, 127 / np.abs(plain).max(axis=1)) and np.abs(made.vectors).max(axis=1).min() == 127
    assert np.abs(made.vectors / made.scales[:, None] - plain).max() <= (0.51 / made.scales).max()
    bits = tiny_embedder.encode(TEXTS, output_dtype="binary")
    assert bits.dtype == np.uint8 and bits.shape == (len(TEXTS), 3)
    assert all(bool(bits[i, j // 8] >> (7 - j % 8) & 1) == (plain[i, j] >= 0) for i in range(6) for j in range(24))
    with pytest.raises(InputError, match="output_dtype"):
        tiny_embedder.encode(TEXTS, output_dtype="int4")


def test_int8_rounds_halves_away_from_zero_and_leaves_zeros() -> None:
    from weft.embed.results import int8_codes

    codes, scales = int8_codes(np.array([[127, 0.5, -0.5, 1.5, -126.6], [0, 0, 0, 0, 0]], np.float32))
    assert codes.tolist() == [[127, 1, -1, 2, -127], [0] * 5] and scales.tolist() == [1, 1]


def test_rank_is_by_the_similarity_of_query_and_documents(tiny_embedder: weft.Embedder) -> None:
    documents = [*TEXTS, TEXTS[0]]
    scores = tiny_embedder.similarity(tiny_embedder.encode_query("a cat"), tiny_embedder.encode_document(documents))[0]
    ranked = tiny_embedder.rank("a cat", documents)
    assert [r.index for r in ranked] == sorted(range(7), key=lambda i: (-scores[i], i))
    assert [r.score for r in ranked] == [float(scores[r.index]) for r in ranked]
    assert tiny_embedder.rank("a cat", documents, 2) == ranked[:2] and tiny_embedder.rank("a cat", []) == []
    with pytest.raises(InputError, match="top_k"):
        tiny_embedder.rank("a cat", documents, 0)


def test_streams_hold_few_texts_at_once(tiny_embedder: weft.Embedder) -> None:
    taken = 0

    def source() -> Iterator[str]:
        nonlocal taken
        for i in range(5000):
            taken += 1
            yield f"the cat {i % 7}"

    vectors = tiny_embedder.encode_stream(source())
    first = next(vectors)
    assert taken == 1024 and first.base is None
    rest = np.stack([first, *vectors])
    assert taken == 5000 and np.array_equal(rest[:7], tiny_embedder.encode([f"the cat {i}" for i in range(7)]))
    assert np.array_equal(rest[:4993], rest[7:])
    assert list(tiny_embedder.encode_stream([])) == []


def test_async_forms_give_the_same(tiny_embedder: weft.Embedder) -> None:
    async def all_at_once() -> list:
        calls = (tiny_embedder.aencode(TEXTS), tiny_embedder.aencode_query(TEXTS), tiny_embedder.arank("a", TEXTS))
        return list(await asyncio.gather(*calls, tiny_embedder.aencode_document(TEXTS), tiny_embedder.aembed(TEXTS)))

    plain, query, ranked, document, made = asyncio.run(all_at_once())
    assert np.array_equal(plain, tiny_embedder.encode(TEXTS)) and np.array_equal(made.vectors, plain)
    assert np.array_equal(query, tiny_embedder.encode_query(TEXTS)) and ranked == tiny_embedder.rank("a", TEXTS)
    assert np.array_equal(document, tiny_embedder.encode_document(TEXTS))


def test_limits_count_the_callers_bytes_before_the_prompt(tiny_folder: Path) -> None:
    embedder = weft.Embedder(str(tiny_folder), limits=Limits(texts=2, text_bytes=6))
    assert len(embedder.encode_query(["é" * 3, "cat"])) == 2
    with pytest.raises(TooLongError, match="7 bytes") as caught:
        embedder.encode(["cat", "é" * 3 + "a"])
    assert (caught.value.length, caught.value.limit) == (7, 6)
    with pytest.raises(InputError, match="texts must be at most 2 in one call, not 3"):
        embedder.encode(["a", "b", "c"])
    assert (SERVICE_LIMITS.texts, SERVICE_LIMITS.text_bytes) == (1000, 32_768)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("cache", [None, "memory"])
def test_an_interrupt_keeps_what_is_done(tiny_folder: Path, threads: int, cache: str | None) -> None:
    embedder = weft.Embedder(str(tiny_folder), threads=threads, cache=cache)
    texts = [f"the cat {i}" for i in range(60)]
    expected = weft.Embedder(str(tiny_folder)).encode(texts)
    real = embedder._encoder.vectors_each

    def interrupted(parts: list) -> Iterator[np.ndarray]:
        made = real(parts)
        for _ in range(3):
            yield next(made)
        made.close()
        raise KeyboardInterrupt

    embedder._encoder.vectors_each = interrupted  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt) as caught:
        embedder.encode(texts, batch_tokens=64)
    assert isinstance(caught.value, EmbedInterrupted)
    count = len(caught.value.vectors)
    assert 0 < count < 60 and np.array_equal(caught.value.vectors, expected[:count])
    embedder._encoder.vectors_each = real  # type: ignore[method-assign]
    made = embedder.embed(texts)
    assert np.array_equal(made.vectors, expected) and made.cached == (count if cache else 0)


def test_an_interrupt_between_windows_keeps_whole_texts(tiny_folder: Path) -> None:
    embedder = weft.Embedder(str(tiny_folder), threads=1)
    real = embedder._encoder.vectors_each

    def interrupted(parts: list) -> Iterator[np.ndarray]:
        made = real(parts)
        yield from (next(made) for _ in range(4))
        raise KeyboardInterrupt

    embedder._encoder.vectors_each = interrupted  # type: ignore[assignment]
    with pytest.raises(EmbedInterrupted) as caught:
        embedder.encode(["the cat", LONG, "a"], truncate="chunk", batch_tokens=48)
    assert len(caught.value.done) == 1 and caught.value.done.tokens.tolist() == [5]


def test_a_program_may_end_while_its_threads_run(tiny_folder: Path) -> None:
    code = (
        "import sys, threading, time, weft\n"
        "weft.Embedder(sys.argv[1]).encode('a cat')\n"
        "kept = weft.Embedder(sys.argv[1])\n"
        "threading.Thread(target=time.sleep, args=(100,), daemon=True).start()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tiny_folder)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
