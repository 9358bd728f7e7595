"""Workloads are the same everywhere: ids inside the vocabulary, texts of given lengths, costs from the program."""

import random
from pathlib import Path

import pytest

from weft.bench import cases, workloads
from weft.bench.cases import Sizes
from weft.bench.cost import Cost, decode_ceiling, token_ceiling
from weft.bench.roofs import Roofs
from weft.errors import InputError


def words(text: str) -> int:
    return 2 + sum(1 + len(word) // 8 for word in text.split())


def test_prompts_are_inside_any_vocabulary_and_differ_by_sequence() -> None:
    ids = workloads.prompt_ids(512, 101)
    assert len(ids) == 512 and min(ids) >= 0 and max(ids) < 101
    assert ids == workloads.prompt_ids(512, 101) != workloads.prompt_ids(512, 101, seed=1)


@pytest.mark.parametrize("tokens", [8, 64, 256, 512])
def test_a_text_has_the_tokens_asked_for(tokens: int) -> None:
    assert words(workloads.text_of(random.Random(1), words, tokens)) == tokens


def test_mixed_texts_are_the_same_every_time_and_cover_the_range() -> None:
    texts = workloads.mixed_texts(words, 300, 8, 64)
    assert texts == workloads.mixed_texts(words, 300, 8, 64)
    lengths = {words(text) for text in texts}
    assert min(lengths) == 8 and max(lengths) == 64


def test_decoding_is_a_slope_over_two_lengths() -> None:
    asked = []

    def ask(job: dict) -> dict:
        asked.append(job["tokens"])
        return {"seconds": [1.0 + job["tokens"] / 50]}

    assert workloads.decode(101).turn(ask) == pytest.approx(50)
    assert asked == [32, 256]


def test_decoding_is_measured_after_a_prompt_of_any_length(generator: Path) -> None:
    plan = cases.plan("decode", str(generator), sizes=Sizes(few=2, many=4, after=64))
    (workload,) = plan.workloads
    assert workload.name == "decode_1_after_64" and len(workload.check["prompt"]) == 64 and plan.context == 256
    assert cases.plan("decode", str(generator), sizes=Sizes(few=2, many=4)).workloads[0].name == "decode_1"


def test_a_run_that_stalled_is_measured_again_but_not_for_ever() -> None:
    seconds = iter([5.0, 1.0, 2.0, 3.0, *[1.0] * 10])

    def ask(job: dict) -> dict:
        return {"seconds": [next(seconds)]}

    turn = workloads.decode(101).turn
    assert turn(ask) == pytest.approx(256 - 32)
    with pytest.raises(InputError, match="too busy"):
        turn(ask)


def test_sequences_together_count_all_their_tokens() -> None:
    def ask(job: dict) -> dict:
        assert len(job["prompts"]) == 16
        return {"seconds": [1.0 + job["tokens"] / 10]}

    assert workloads.parallel(101, 16).turn(ask) == pytest.approx(160)


def test_the_cost_of_a_token_is_that_of_the_products(generator: Path) -> None:
    from weft.bench.cost import cost_of
    from weft.runtime import Decoder, open_checkpoint

    cost = cost_of(Decoder(open_checkpoint(generator), bind=False).program)
    hidden, inner, query, shared, layers, vocab = 48, 80, 6 * 8, 2 * 8, 2, 258
    before, behind = hidden * (query + 2 * shared), hidden * query + 3 * hidden * inner  # the attention of a layer
    assert cost.flops == 2 * (layers * before + (layers - 1) * behind)
    assert cost.row_flops == 2 * (behind + vocab * hidden)  # the last layer's end and the head
    assert cost.read_bytes == 4 * (layers * (before + behind) + vocab * hidden)


def test_ceilings_follow_from_roofs(monkeypatch: pytest.MonkeyPatch) -> None:
    roofs = Roofs(1, "scalar")
    roofs._values = {("read", 1 << 20): [2.0e9, 1.0e9]}
    cost = Cost(read_bytes=1 << 20, flops=0, row_flops=0)
    assert decode_ceiling(cost, roofs).most == pytest.approx(2.0e9 / (1 << 20))
    assert decode_ceiling(cost, roofs, sequences=4).most == pytest.approx(4 * 2.0e9 / (1 << 20))
    assert token_ceiling(100, roofs, "f32") is None


@pytest.mark.parametrize("given", [{"few": 9, "many": 9}, {"prompt": 0}, {"sequences": 0}])
def test_sizes_that_make_no_sense_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(InputError, match="sizes"):
        Sizes(**given)


def test_a_prompt_longer_than_the_context_is_refused(generator: Path) -> None:
    with pytest.raises(InputError, match="the model reads 4096"):
        cases.plan("prefill", str(generator), sizes=Sizes(prompt=5000))


def test_documents_longer_than_the_model_takes_are_left_out(embedder: Path) -> None:
    plan = cases.plan("embed", str(embedder), sizes=Sizes(texts=20))
    assert [workload.name for workload in plan.workloads] == ["embed_1", "embed_20_mixed", "embed_256", "embed_512"]
