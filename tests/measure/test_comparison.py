"""Two models beside each other: transformers' divergences and hidden states, positions, refusals."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from measured_cases import NOISE, TEXT, ids, write_model

from weft.errors import InputError
from weft.measure import compare

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "measure" / "measures.json").read_text())


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("compared")
    return write_model(folder / "plain.gguf"), write_model(folder / "noisy.gguf", NOISE)


def test_divergences_and_layers_are_those_of_transformers(both: tuple[Path, Path]) -> None:
    found, golden = compare(*both, TEXT, shown=3, window=512), GOLDEN["compared"]
    for name in ("mean", "median", "p99", "max"):
        assert getattr(found, name) == pytest.approx(golden[name], rel=1e-4), name
    assert found.agreement == golden["agreement"] and found.targets == len(ids()) - 1
    assert [one.place for one in found.worst] == golden["worst"]
    assert found.perplexity_a == pytest.approx(GOLDEN["one_window"]["perplexity"], rel=1e-5)
    assert found.perplexity_b == pytest.approx(GOLDEN["noisy"]["perplexity"], rel=1e-5)
    assert len(found.layers) == 2 and found.layers[0] < found.layers[1]
    assert found.speed_a is not None and found.speed_a > 0 and found.bytes_a == found.bytes_b


def test_the_hidden_states_are_those_of_transformers(both: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.measure.comparison.LAYER_TOKENS", len(ids()))
    found = compare(*both, TEXT, window=512, speed=False)
    assert found.layers[0] == pytest.approx(GOLDEN["compared"]["layers"][0], rel=1e-5)


def test_a_model_is_not_apart_from_itself_and_windows_add_up(both: tuple[Path, Path]) -> None:
    same = compare(both[0], both[0], TEXT, window=64, speed=False)
    assert same.mean == same.max == 0.0 and same.agreement == 1.0 and set(same.layers) == {0.0}
    slid = compare(*both, TEXT, window=64, stride=32, layers=False, speed=False)
    assert slid.targets == len(ids()) - 1 and slid.layers == () and slid.speed_a is None
    assert slid.perplexity_a == pytest.approx(GOLDEN["standard"]["perplexity"], rel=1e-5)


def test_a_position_shows_its_text(both: tuple[Path, Path]) -> None:
    worst = compare(*both, TEXT, shown=1, layers=False, speed=False).worst[0]
    raw = TEXT.encode()
    assert worst.token.encode() == raw[worst.place : worst.place + 1]
    assert worst.before.encode() == raw[worst.place - 16 : worst.place]


def test_models_of_other_tokens_are_refused(both: tuple[Path, Path], tmp_path: Path) -> None:
    from tiny_chat import write_chat_model

    other = write_chat_model(tmp_path / "other.gguf", special=["<|more|>"])
    with pytest.raises(InputError, match=r"different tokens \(vocabularies of 258 and 259\)"):
        compare(both[0], other, TEXT)


@pytest.mark.parametrize("name", ["gemma3_text", "qwen3_5_text", "granitemoehybrid", "gpt_oss"])
def test_layers_are_found_in_models_of_all_kinds(name: str, tmp_path: Path) -> None:
    import tiny

    from weft.measure.layers import LayeredDecoder
    from weft.runtime.checkpoint import open_checkpoint

    config = tiny.CONFIGS[name]
    decoder = LayeredDecoder(open_checkpoint(tiny.write_folder(tmp_path, config)), context=64, kv_tokens=64)
    ids = tiny.token_ids(config, 9)
    states = decoder.hidden_states(ids)
    assert len(states) == config["num_hidden_layers"]
    assert all(state.shape == (9, config["hidden_size"]) for state in states)
    assert all(abs(a - b).max() > 0 for a, b in pairwise(states))
