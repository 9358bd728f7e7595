"""Perplexity beside transformers', in windows that slide and in llama.cpp's; what is scored; refusals."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from measured_cases import LLAMA, SLIDING, TEXT, ids, write_model

from weft.errors import InputError, WeftError
from weft.measure import Perplexity, Surprise, perplexity_of, summed
from weft.measure.windows import Window, halves, sliding
from weft.runtime.checkpoint import open_checkpoint
from weft.runtime.decoder import Decoder

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "measure" / "measures.json").read_text())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("measured") / "tiny.gguf")


@pytest.fixture(scope="module")
def with_bos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("measured") / "bos.gguf"
    return write_model(made, tokenizer__ggml__add_bos_token=True, tokenizer__ggml__bos_token_id=256)


@pytest.mark.parametrize("name", SLIDING)
def test_sliding_windows_are_those_of_transformers(model: Path, name: str) -> None:
    window, stride = SLIDING[name]
    found = perplexity_of(model, TEXT, window=window, stride=stride)
    assert found.targets == GOLDEN[name]["targets"] == len(ids()) - 1
    assert found.perplexity == pytest.approx(GOLDEN[name]["perplexity"], rel=1e-5)


@pytest.mark.parametrize("bos", ["", "_bos"])
@pytest.mark.parametrize("name", LLAMA)
def test_the_windows_of_llama_cpp(model: Path, with_bos: Path, name: str, bos: str) -> None:
    found = perplexity_of(with_bos if bos else model, TEXT, window=LLAMA[name], llama=True)
    assert found.targets == GOLDEN[name + bos]["targets"]
    assert found.perplexity == pytest.approx(GOLDEN[name + bos]["perplexity"], rel=1e-5)


def test_error_accuracy_and_bits_follow_from_the_losses(model: Path) -> None:
    logits = Decoder(open_checkpoint(model), context=512).logits(ids())[:-1].astype(np.float64)
    wanted = ids()[1:]
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(wanted)), wanted]
    found = perplexity_of(model, TEXT)
    assert found.loss == pytest.approx(losses.mean(), rel=1e-9)
    error = found.perplexity * losses.std(ddof=1) / math.sqrt(len(losses))
    assert found.error == pytest.approx(error, rel=1e-9)
    assert found.accuracy == (logits.argmax(axis=1) == wanted).mean()
    assert found.nbytes == len(TEXT.encode()) - 1  # a token of this model is a byte
    assert found.bits_per_byte == pytest.approx(losses.mean() / math.log(2), rel=1e-9)


def test_windows_score_every_token_once_and_each_has_its_window_before_it() -> None:
    for count, window, stride in [(2, 8, 4), (8, 8, 4), (9, 8, 4), (100, 16, 5), (77, 16, 15)]:
        found = sliding(count, window, stride)
        assert [place for one in found for place in range(one.scored, one.last)] == list(range(1, count))
        assert all(one.last - one.first <= window and one.scored > one.first for one in found)
        assert all(one.scored - one.first == window - stride for one in found[1:])
    assert sliding(1, 8, 4) == [] and halves(7, 8) == []
    assert halves(21, 10) == [Window(0, 6, 10), Window(10, 16, 20)]


def test_it_is_iterated_by_window_and_the_first_tokens_may_suffice(model: Path) -> None:
    measuring = Perplexity(model, TEXT, window=64, stride=32, tokens=100)
    parts = list(measuring)
    assert len(parts) == len(measuring) == 3 and [part.targets for part in parts] == [63, 32, 4]
    assert summed(parts).total == pytest.approx(sum(part.total for part in parts))
    assert measuring.decoder.pages.free_count == measuring.decoder.pages.count


def test_threads_change_no_bit(model: Path) -> None:
    one, two = (perplexity_of(model, TEXT, window=64, threads=threads).total for threads in (1, 2))
    assert one == two


@pytest.mark.parametrize(
    "options, said",
    [
        ({"window": 2}, "window must be 4 or more"),
        ({"window": 64, "stride": 64}, "stride must be 1 to 63"),
        ({"stride": 0}, "stride"),
        ({"llama": True, "stride": 3}, "stride excludes llama"),
        ({"llama": True, "window": 1024}, "text has 325 tokens; at least 1024"),
        ({"tokens": 1}, "tokens must be 2 or more"),
        ({"window": 5000}, "4096"),
    ],
)
def test_refusals(model: Path, options: dict[str, int], said: str) -> None:
    with pytest.raises(WeftError) as caught:
        perplexity_of(model, TEXT, **options)
    assert said in str(caught.value), str(caught.value)


def test_texts_that_cannot_be_measured(model: Path, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 au lait")
    for text, said in [
        ("a", "has 1 token"),
        (tmp_path / "none.txt", "no such file"),
        (tmp_path / "latin.txt", "byte 3"),
    ]:
        with pytest.raises(InputError, match=said):
            perplexity_of(model, text)


def test_an_impossible_token_is_a_large_number_and_not_an_error() -> None:
    assert Surprise(1e6, 1e12, 1, 0, 1).perplexity == math.exp(700)
