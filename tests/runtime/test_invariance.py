"""A sequence has the same bits alone and in any batch, cut into any chunks, on any number of threads."""

from pathlib import Path

import numpy as np
import pytest
import tiny
import tiny_integers
from soaking import times
from test_gguf_models import BLOCKED, write_model

from weft.runtime import Decoder, Encoder, Head, Step, open_checkpoint, pages_for

MIXTURES = times(1000, 150)
THREADS = (1, 2, 3)


class Run:
    """One sequence on its way through a decoder: pages it holds, tokens it has computed, logits it has got."""

    def __init__(self, decoder: Decoder, ids: np.ndarray) -> None:
        self.ids, self.done, self.logits = ids, 0, []
        self.pages = decoder.pages.take(pages_for(len(ids)))
        self.table = np.zeros(decoder.max_pages, np.int32)
        self.table[: len(self.pages)] = self.pages


def mixed_step(decoder: Decoder, runs: list[Run], counts: list[int]) -> None:
    """One step with the next `counts` tokens of each run, logits for all of them."""
    ids = [run.ids[run.done : run.done + n] for run, n in zip(runs, counts)]
    positions = [np.arange(run.done, run.done + n) for run, n in zip(runs, counts)]
    segments = np.concatenate([[0], np.cumsum(counts)])
    total = int(segments[-1])
    arrays = (np.concatenate(ids), np.concatenate(positions), segments, np.arange(total))
    step = Step(*(a.astype(np.int32) for a in arrays), pages=np.stack([run.table for run in runs]))
    logits = decoder.run(step)
    for run, n, start in zip(runs, counts, segments):
        run.logits.append(logits[start : start + n])
        run.done += n


def mixture(decoder: Decoder, sequences: list[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """The logits of the sequences after steps with random members and random chunks of each."""
    runs = [Run(decoder, ids) for ids in sequences]
    try:
        while pending := [run for run in runs if run.done < len(run.ids)]:
            chosen = [pending[i] for i in rng.permutation(len(pending))[: rng.integers(1, len(pending) + 1)]]
            mixed_step(decoder, chosen, [int(rng.integers(1, len(run.ids) - run.done + 1)) for run in chosen])
        return [np.concatenate(run.logits) for run in runs]
    finally:
        for run in runs:
            decoder.pages.release(run.pages)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q4_1", "q8_0", "awq-32", "ct-8-packed-channel", "ct-4-sym-32"])
def test_a_decoded_sequence_has_the_same_bits_in_any_mixture(tmp_path: Path, kind: str) -> None:
    """`f16` and `bf16` are the f32 model computed so."""
    plain, compute = kind in ("f32", "f16", "bf16"), kind if kind in ("f16", "bf16") else None
    if kind in tiny_integers.VARIANTS:
        path = tmp_path / "m"
        tiny_integers.write(path, tiny_integers.VARIANTS[kind], BLOCKED)
    else:
        path = tiny.write_folder(tmp_path / "m", BLOCKED) if plain else write_model(tmp_path / "m.gguf", BLOCKED, kind)
    decoders = [Decoder(open_checkpoint(path), compute=compute, threads=n) for n in THREADS]
    check_mixtures(decoders, BLOCKED, MIXTURES // 3 if kind != "f32" else MIXTURES)


@pytest.mark.soak
@pytest.mark.parametrize("model", ["qwen3", "qwen2"])
@pytest.mark.parametrize("state", ["int8", "int4", "int8-plain"])
def test_a_rounded_state_has_the_same_bits_in_any_mixture(tmp_path: Path, model: str, state: str) -> None:
    """Keys of qwen2 have a bias, which rotated codes leave out."""
    cfg = tiny.CONFIGS[model]
    path = tiny.write_folder(tmp_path / "m", cfg)
    decoders = [Decoder(open_checkpoint(path), kv_dtype=state, threads=n) for n in THREADS]
    check_mixtures(decoders, cfg, MIXTURES // 6)


def check_mixtures(decoders: list[Decoder], cfg: dict, count: int) -> None:
    rng = np.random.default_rng(11)
    sequences = [tiny.token_ids(cfg, int(n), seed=i) for i, n in enumerate((1, 2, 5, 17, 31, 32, 33, 64, 70, 97))]
    alone = [decoders[0].logits(ids) for ids in sequences]
    for number in range(count):
        chosen = rng.permutation(len(sequences))[: rng.integers(1, 6)]
        results = mixture(decoders[number % len(decoders)], [sequences[i] for i in chosen], rng)
        for i, logits in zip(chosen, results):
            assert np.array_equal(logits, alone[i]), f"mixture {number}: sequence {i} of {len(sequences[i])} tokens"


@pytest.mark.soak
@pytest.mark.parametrize("compute", ["f32", "f16", "bf16", "bf16x3", "int8"])
def test_an_encoded_text_has_the_same_bits_in_any_batch(tmp_path: Path, compute: str) -> None:
    cfg = {**tiny.CONFIGS["bert"], "hidden_size": 64, "intermediate_size": 128}  # whole steps of every product
    checkpoint = open_checkpoint(tiny.write_folder(tmp_path / "bert", cfg))
    encoders = [Encoder(checkpoint, Head("mean", normalise=True), compute=compute, threads=n) for n in THREADS]
    rng = np.random.default_rng(12)
    texts = [tiny.token_ids(cfg, int(n), seed=i) for i, n in enumerate(rng.integers(1, 150, 40))]
    alone = [encoders[0].vectors([ids])[0] for ids in texts]
    for number in range(MIXTURES // 3 if compute != "f32" else MIXTURES):
        chosen = rng.permutation(len(texts))[: rng.integers(1, 12)]
        vectors = encoders[number % len(encoders)].vectors([texts[i] for i in chosen])
        for i, vector in zip(chosen, vectors):
            assert np.array_equal(vector, alone[i]), f"batch {number}: text {i} of {len(texts[i])} tokens"
