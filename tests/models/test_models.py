"""Tiny random checkpoints give what transformers computes, in one step, in chunks and token by token."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tiny

from weft.backends.cpu import CpuBackend
from weft.errors import TooLongError
from weft.graph import Tensor, Trace
from weft.nn import Scope
from weft.nn.step import TracedStep
from weft.runtime import Decoder, Encoder, Head, open_checkpoint
from weft.runtime.prepared import prepare
from weft.runtime.programs import Programs
from weft.weights import write_safetensors

GOLDEN: dict[str, np.ndarray] = {}
for golden in (Path(__file__).parent.parent / "golden" / "models").glob("*.npz"):
    GOLDEN |= {name: values for name, values in np.load(golden).items() if name != "versions"}
LIMIT = 2e-4
SHORT = 256  # the context that the models of these tests were trained on before they were stretched
DECODERS = [name for name, cfg in tiny.CONFIGS.items() if tiny.decodes(cfg)]
ENCODERS = [name for name in tiny.CONFIGS if name not in DECODERS]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    return {name: tiny.write_folder(root / name, cfg) for name, cfg in tiny.CONFIGS.items()}


@pytest.fixture(scope="module")
def decoder_of(folders: dict[str, Path]) -> Callable[[str, int], Decoder]:
    """The decoder of a name with a context, made once."""
    return cache(lambda name, context: Decoder(open_checkpoint(folders[name]), context=context))


def context_of(length: int) -> int:
    """The context to ask for: it decides by which rule a text is read, where transformers looks at the text."""
    return SHORT if length <= SHORT else length


def error_of(values: np.ndarray, name: str) -> float:
    """The largest difference from what transformers computed, over the rows that are kept of it."""
    length = len(values)
    key = next(key for key in (f"{name}/{n}" for n in (length, 130, 600, 1000)) if key in GOLDEN)
    rows = [row for row in tiny.KEPT if row < length]
    return float(np.abs(values[rows] - GOLDEN[key][: len(rows)]).max())


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("length", tiny.LENGTHS)
def test_logits_are_those_of_transformers(decoder_of: Callable[[str, int], Decoder], name: str, length: int) -> None:
    decoder = decoder_of(name, context_of(length))
    ids = tiny.token_ids(tiny.CONFIGS[name], length)
    whole = decoder.logits(ids, chunk=length)
    assert error_of(whole, name) <= LIMIT
    for chunk in (16, 37, 64, 1):
        assert np.array_equal(whole, decoder.logits(ids, chunk=chunk))
    assert decoder.pages.free_count == decoder.pages.count


@pytest.mark.parametrize("name", [name for name in DECODERS if not tiny.recurs(tiny.CONFIGS[name])])
def test_hidden_states_without_a_state_are_what_the_logits_come_from(
    decoder_of: Callable[[str, int], Decoder], name: str
) -> None:
    """Two texts in one step, as vectors are made of them."""
    decoder = decoder_of(name, SHORT)
    checkpoint = decoder.checkpoint
    programs = Programs(checkpoint, CpuBackend(), compute="f32")

    def build(trace: Trace, w: Scope) -> dict[str, Tensor]:
        return {"hidden": programs.module.hidden_states(w / "model", programs.config, TracedStep(trace, context=SHORT))}

    executable = programs.compile(prepare(*programs.trace(name, build), {}, programs.backend), states={})
    texts = [tiny.token_ids(tiny.CONFIGS[name], 130), tiny.token_ids(tiny.CONFIGS[name], 40, seed=8)]
    arrays = {
        "ids": np.concatenate(texts),
        "positions": np.concatenate([np.arange(len(text), dtype=np.int32) for text in texts]),
        "segments": np.array([0, 130, 170], np.int32),
        "rows": np.arange(170, dtype=np.int32),
    }
    head = checkpoint.tensors.get("lm_head.weight") or checkpoint.tensors["model.embed_tokens.weight"]
    logits = executable.run(arrays)["hidden"] @ head.numpy().T
    logits = logits / getattr(programs.config, "logits_scaling", 1.0)
    cap = getattr(programs.config, "final_logit_softcapping", None)
    logits = cap * np.tanh(logits / cap) if cap else logits
    assert np.abs(logits - np.concatenate([decoder.logits(text) for text in texts])).max() <= LIMIT


@pytest.mark.parametrize(("name", "length"), [(name, n) for name in ENCODERS for n in tiny.lengths(tiny.CONFIGS[name])])
def test_hidden_states_are_those_of_transformers(folders: dict[str, Path], name: str, length: int) -> None:
    """RoBERTa's long texts have tokens with the padding's id, which are counted like any other."""
    encoder = Encoder(open_checkpoint(folders[name]), Head("mean"))
    assert error_of(encoder.hidden_states(tiny.token_ids(tiny.CONFIGS[name], length)), name) <= LIMIT


@pytest.mark.parametrize("name", ["roberta", "xlm_roberta"])
def test_the_longest_texts_have_padding_inside(name: str) -> None:
    cfg = tiny.CONFIGS[name]
    assert cfg["pad_token_id"] in tiny.token_ids(cfg, 600)


@pytest.mark.parametrize(("name", "limit"), [("bert", 640), ("roberta", 608), ("xlm_roberta", 600)])
def test_a_text_longer_than_the_position_table_is_refused(folders: dict[str, Path], name: str, limit: int) -> None:
    encoder = Encoder(open_checkpoint(folders[name]), Head("mean"))
    assert encoder.hidden_states([5] * limit).shape[0] == limit
    with pytest.raises(TooLongError, match=f"{limit + 1} tokens, the model takes {limit}"):
        encoder.hidden_states([5] * (limit + 1))


@pytest.mark.parametrize("name", ["roberta", "xlm_roberta"])
def test_tensors_saved_inside_a_larger_model_are_found(tmp_path: Path, folders: dict[str, Path], name: str) -> None:
    cfg = tiny.CONFIGS[name]
    ids, folder = tiny.token_ids(cfg, 7), tiny.write_folder(tmp_path / name, cfg)
    write_safetensors(folder / "model.safetensors", {f"roberta.{key}": v for key, v in tiny.weights(cfg).items()})
    inside, alone = (Encoder(open_checkpoint(path), Head("mean")) for path in (folder, folders[name]))
    assert np.array_equal(inside.hidden_states(ids), alone.hidden_states(ids))


def test_the_first_checkpoints_of_nomic_bert_are_the_same_model(tmp_path: Path, folders: dict[str, Path]) -> None:
    ids = tiny.token_ids(tiny.NOMIC_BERT, 130)
    first = tiny.write_folder(tmp_path / "first", *tiny.first_nomic(tiny.NOMIC_BERT))
    fused, apart = (Encoder(open_checkpoint(path), Head("mean")) for path in (first, folders["nomic_bert"]))
    assert np.array_equal(fused.hidden_states(ids), apart.hidden_states(ids))
    assert fused.max_tokens == apart.max_tokens == 640


@pytest.mark.parametrize("name", ["llama-grouped", "llama-llama3-rope"])
def test_a_half_precision_state_stays_close(folders: dict[str, Path], name: str) -> None:
    decoder = Decoder(open_checkpoint(folders[name]), kv_dtype="f16")
    logits, want = decoder.logits(tiny.token_ids(tiny.CONFIGS[name], 600)), GOLDEN[f"{name}/600"]
    logits = logits[[row for row in tiny.KEPT if row < 600]]
    assert np.linalg.norm(logits - want) <= 1e-3 * np.linalg.norm(want)  # keys and values have 11 bits


@pytest.mark.parametrize("name", [*DECODERS, *ENCODERS])
@pytest.mark.parametrize("level", ["scalar", "avx2", "avx512", "neon"])
def test_every_level_gives_the_model(folders: dict[str, Path], name: str, level: str) -> None:
    from weft.backends.cpu import levels_present

    if level not in levels_present():
        pytest.skip(f"this machine has no {level}")
    checkpoint, ids = open_checkpoint(folders[name]), tiny.token_ids(tiny.CONFIGS[name], 40)
    if name in DECODERS:
        result = Decoder(checkpoint, context=SHORT, level=level).logits(ids)
    else:
        result = Encoder(checkpoint, Head("mean"), level=level).hidden_states(ids)
    assert error_of(result, name) <= LIMIT
