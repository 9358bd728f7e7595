"""Adapters in a step: what peft computes, and the same bits in any mixture, in any chunks, on any number of threads."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
import tiny_adapters
from soaking import times
from test_gguf_models import BLOCKED, write_model

from weft.errors import InputError, NotFoundError, UnsupportedError
from weft.runtime import Decoder, Encoder, Head, Step, open_checkpoint, pages_for
from weft.runtime.adapters import Adapter
from weft.weights.safetensors import open_safetensors, write_safetensors

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "adapters" / "tiny-adapters.npz")
LIMIT = 2e-4  # of what peft gives, in logits of a few units
TOKENS = 17
RICH = {**tiny_adapters.PEFT, **tiny_adapters.PATTERNS, "target_modules": [*tiny_adapters.ALL, "embed_tokens"]}
FOUR = {
    "plain": tiny_adapters.PEFT,
    "patterns": RICH,
    "dora": {**tiny_adapters.PEFT, "use_dora": True, "r": 20},
    "whole": {**tiny_adapters.PEFT, "target_modules": ["v_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
}


def base(tmp_path: Path, cfg: dict, kind: str = "f32", **options: object) -> Decoder:
    plain = kind == "f32"
    path = tiny.write_folder(tmp_path / "model", cfg) if plain else write_model(tmp_path / "m.gguf", cfg, kind)
    return Decoder(open_checkpoint(path), **options)


def four(decoder: Decoder, tmp_path: Path, cfg: dict) -> dict[str, Adapter | None]:
    """Four adapters of different kinds and types of elements, and none."""
    found: dict[str, Adapter | None] = {"none": None}
    for seed, (name, settings) in enumerate(FOUR.items(), 1):
        dtype = ("f32", "f16", "bf16")[seed % 3]
        folder = tiny_adapters.write_adapter(tmp_path / name, cfg, settings, dtype, seed)
        found[name] = decoder.adapters.load(name, folder)
    return found


ENCODERS = [name for name in tiny_adapters.CASES if name.startswith("bert")]


@pytest.mark.parametrize("name", [name for name in tiny_adapters.CASES if name not in ENCODERS])
def test_logits_are_those_of_peft(tmp_path: Path, name: str) -> None:
    cfg = tiny.CONFIGS[tiny_adapters.CASES[name][0]]
    decoder, ids = base(tmp_path, cfg), tiny.token_ids(cfg, TOKENS)
    adapter = decoder.adapters.load("a", tiny_adapters.write_case(tmp_path / name, name))
    got = decoder.logits(ids, adapter=adapter)
    assert np.abs(got - GOLDEN[name]).max() <= LIMIT
    assert np.abs(got - decoder.logits(ids)).max() > 100 * LIMIT  # the adapter does something


@pytest.mark.parametrize("name", ["llama-plain", "llama-dora", "llama-head", "qwen3-plain", "phi3-fused"])
def test_an_adapter_fits_a_gguf_file_of_the_same_model(tmp_path: Path, name: str) -> None:
    """GGUF files of Llama have the rows of queries and keys in another order, adapters have Hugging Face's."""
    cfg = {**tiny.CONFIGS[tiny_adapters.CASES[name][0]], "sliding_window": None}
    decoder = Decoder(open_checkpoint(write_model(tmp_path / "m.gguf", cfg)))
    adapter = decoder.adapters.load("a", tiny_adapters.write_case(tmp_path / name, name))
    got = decoder.logits(tiny.token_ids(cfg, TOKENS), adapter=adapter)
    assert np.abs(got - GOLDEN[name]).max() <= LIMIT


@pytest.mark.parametrize("name", ["llama-plain", "llama-dora", "llama-bias-dora"])
def test_an_adapter_of_a_4_bit_base_is_that_of_its_widened_weights(tmp_path: Path, name: str) -> None:
    """DoRA's norms too. What peft computes is the golden of the case above: here the base's weights are others."""
    model, settings, _ = tiny_adapters.CASES[name]
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}  # rows are whole blocks
    cfg = {**tiny.CONFIGS[model], "hidden_size": 64, "intermediate_size": 96, **heads}
    file, folder = write_model(tmp_path / "m.gguf", cfg, "q4_1"), tiny.write_folder(tmp_path / "wide", cfg)
    packed = open_checkpoint(file)
    wide = {key: packed.tensors[key].numpy().astype(np.float32) for key in tiny.weights(cfg)}
    write_safetensors(folder / "model.safetensors", wide)
    adapter = tiny_adapters.write_adapter(tmp_path / "a", cfg, settings)
    logits = []
    for checkpoint in (packed, open_checkpoint(folder)):
        decoder = Decoder(checkpoint, compute="f32", kv_dtype="f32")
        logits.append(decoder.logits(tiny.token_ids(cfg, TOKENS), adapter=decoder.adapters.load("a", adapter)))
    assert np.abs(logits[0] - logits[1]).max() <= LIMIT / 4


@pytest.mark.parametrize("name", ["llama-plain", "llama-dora", "qwen3-plain"])
def test_an_mlx_folder_gives_the_same_logits(tmp_path: Path, name: str) -> None:
    model, settings, _ = tiny_adapters.CASES[name]
    cfg = tiny.CONFIGS[model]
    ends = {".lora_A.weight": ".lora_a", ".lora_B.weight": ".lora_b", ".lora_magnitude_vector": ".m"}
    tensors = {}
    for key, values in tiny_adapters.tensors(cfg, settings).items():
        end = next(end for end in ends if key.endswith(end))
        tensors[key.removeprefix("base_model.model.").removesuffix(end) + ends[end]] = np.ascontiguousarray(values.T)
    kind = "dora" if settings.get("use_dora") else "lora"
    parameters = {"rank": settings["r"], "scale": settings["lora_alpha"] / settings["r"], "dropout": 0.0}
    folder = tmp_path / "mlx"
    folder.mkdir()
    config = {"fine_tune_type": kind, "num_layers": -1, "lora_parameters": parameters}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    write_safetensors(folder / "adapters.safetensors", tensors)
    decoder = base(tmp_path, cfg)
    got = decoder.logits(tiny.token_ids(cfg, TOKENS), adapter=decoder.adapters.load("a", folder))
    assert np.abs(got - GOLDEN[name]).max() <= LIMIT


def test_an_embedding_of_mlx_is_refused(tmp_path: Path) -> None:
    """With it a tied head would change, as it does not in PEFT."""
    cfg, folder = tiny.CONFIGS["llama-full-tied"], tmp_path / "mlx"
    folder.mkdir()
    config = {"num_layers": -1, "lora_parameters": {"rank": 4, "scale": 1.0, "dropout": 0.0}}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    matrices = {"a": np.ones((cfg["vocab_size"], 4), np.float32), "b": np.ones((4, cfg["hidden_size"]), np.float32)}
    write_safetensors(
        folder / "adapters.safetensors", {f"model.embed_tokens.lora_{x}": values for x, values in matrices.items()}
    )
    with pytest.raises(UnsupportedError, match=r"embed_tokens is an embedding.*MLX"):
        base(tmp_path, cfg).adapters.load("a", folder)


class Run:
    """One sequence on its way through a decoder, with its adapter."""

    def __init__(self, decoder: Decoder, ids: np.ndarray, adapter: Adapter | None) -> None:
        self.ids, self.adapter, self.done, self.logits = ids, adapter, 0, []
        self.pages = decoder.pages.take(pages_for(len(ids)))
        self.table = np.zeros(decoder.max_pages, np.int32)
        self.table[: len(self.pages)] = self.pages


def mixed_step(decoder: Decoder, runs: list[Run], counts: list[int], rng: np.random.Generator) -> None:
    """One step with the next `counts` tokens of each run; logits for all of them, asked for in any order."""
    ids = [run.ids[run.done : run.done + n] for run, n in zip(runs, counts)]
    positions = [np.arange(run.done, run.done + n) for run, n in zip(runs, counts)]
    segments = np.concatenate([[0], np.cumsum(counts)])
    order = rng.permutation(int(segments[-1]))
    arrays = (np.concatenate(ids), np.concatenate(positions), segments, order)
    indices = np.asarray([run.adapter.index if run.adapter else 0 for run in runs], np.int32)
    pages = np.stack([run.table for run in runs])
    asked = decoder.run(Step(*(a.astype(np.int32) for a in arrays), pages=pages, adapters=indices))
    logits = np.empty_like(asked)
    logits[order] = asked
    for run, n, start in zip(runs, counts, segments):
        run.logits.append(logits[start : start + n])
        run.done += n


def mixture(decoder: Decoder, jobs: list[tuple[np.ndarray, Adapter | None]], rng: np.random.Generator) -> list:
    runs = [Run(decoder, *job) for job in jobs]
    try:
        while pending := [run for run in runs if run.done < len(run.ids)]:
            chosen = [pending[i] for i in rng.permutation(len(pending))[: rng.integers(1, len(pending) + 1)]]
            mixed_step(decoder, chosen, [int(rng.integers(1, len(run.ids) - run.done + 1)) for run in chosen], rng)
        return [np.concatenate(run.logits) for run in runs]
    finally:
        for run in runs:
            decoder.pages.release(run.pages)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q4_0", "q4_1"])
def test_four_adapters_and_none_in_one_batch_equal_each_alone(tmp_path: Path, kind: str) -> None:
    """`f16` and `bf16` are the f32 model computed so. Alone without an adapter is the program that knows none."""
    compute, cfg = kind if kind in ("f16", "bf16") else None, BLOCKED
    first = base(tmp_path, cfg, "f32" if compute else kind, compute=compute, threads=1)
    lengths = dict(zip(four(first, tmp_path, cfg), (33, 1, 70, 17, 40)))
    rng = np.random.default_rng(5)
    alone = {}
    for threads in (1, 2, 4):
        decoder = Decoder(first.checkpoint, compute=compute, threads=threads)
        adapters = four(decoder, tmp_path, cfg)
        jobs = {name: (tiny.token_ids(cfg, lengths[name], seed=7), adapters[name]) for name in adapters}
        if not alone:
            alone = {name: decoder.logits(ids, adapter=adapter) for name, (ids, adapter) in jobs.items()}
            assert len({logits[0].tobytes() for logits in alone.values()}) == 5  # all differ
        for _ in range(times(12, 4)):
            names = list(rng.permutation(list(jobs)))
            for name, logits in zip(names, mixture(decoder, [jobs[name] for name in names], rng)):
                assert np.array_equal(logits, alone[name]), f"{name}, {threads} threads"


def test_chunks_of_a_prompt_change_nothing(tmp_path: Path) -> None:
    decoder = base(tmp_path, BLOCKED, "q4_1")
    ids = tiny.token_ids(BLOCKED, 97)
    for adapter in four(decoder, tmp_path, BLOCKED).values():
        whole = decoder.logits(ids, adapter=adapter)
        for chunk in (1, 7, 32, 64):
            assert np.array_equal(decoder.logits(ids, adapter=adapter, chunk=chunk), whole)


def test_every_level_computes_the_same_adapters(tmp_path: Path) -> None:
    from weft.backends.cpu import levels_present

    cfg = tiny.CONFIGS["llama-grouped"]
    path = tiny.write_folder(tmp_path / "m", cfg)
    folder = tiny_adapters.write_case(tmp_path / "a", "llama-dora")
    for level in levels_present():
        decoder = Decoder(open_checkpoint(path), level=level)
        got = decoder.logits(tiny.token_ids(cfg, TOKENS), adapter=decoder.adapters.load("a", folder))
        assert np.abs(got - GOLDEN["llama-dora"]).max() <= LIMIT


def test_a_blend_is_the_weighted_sum_of_the_changes(tmp_path: Path) -> None:
    """Held against an adapter whose file has the concatenated matrices, and against weights with the sum merged in."""
    cfg = tiny.CONFIGS["llama-wide-heads-bias"]
    decoder, ids = base(tmp_path, cfg), tiny.token_ids(cfg, TOKENS)
    settings = [{**tiny_adapters.PEFT, "bias": "all"}, {**tiny_adapters.PEFT, "r": 3, "target_modules": ["q_proj"]}]
    for seed, one in enumerate(settings, 1):
        decoder.adapters.load(f"a{seed}", tiny_adapters.write_adapter(tmp_path / f"a{seed}", cfg, one, "f32", seed))
    weights = {"a1": 0.75, "a2": -1.5}
    blend = decoder.adapters.blend("both", weights)
    assert blend.rank == 7
    merged = tiny.weights(cfg)
    start = tiny.weights(cfg)
    for seed, one in enumerate(settings, 1):
        made = {k.removeprefix("base_model.model."): v for k, v in tiny_adapters.tensors(cfg, one, seed).items()}
        for name, values in made.items():
            module = name.partition(".lora_")[0].removesuffix(".base_layer.bias").removesuffix(".bias")
            if name.endswith("lora_A.weight"):
                scale = one["lora_alpha"] / one["r"]
                merged[f"{module}.weight"] += weights[f"a{seed}"] * scale * made[f"{module}.lora_B.weight"] @ values
            elif name.endswith("bias"):
                merged[f"{module}.bias"] += np.float32(weights[f"a{seed}"]) * (values - start[f"{module}.bias"])
    write_safetensors(tiny.write_folder(tmp_path / "merged", cfg) / "model.safetensors", merged)
    want = Decoder(open_checkpoint(tmp_path / "merged")).logits(ids)
    assert np.abs(decoder.logits(ids, adapter=blend) - want).max() <= LIMIT
    again = decoder.adapters.blend("again", {"both": 2.0})
    assert again.rank == 7 and again.digest != blend.digest


def test_what_has_no_weighted_sum_is_not_blended(tmp_path: Path) -> None:
    cfg = tiny.CONFIGS["llama-grouped"]
    decoder = base(tmp_path, cfg)
    four(decoder, tmp_path, cfg)
    for name, why in (("dora", "is DoRA"), ("whole", "modules_to_save")):
        with pytest.raises(UnsupportedError, match=why):
            decoder.adapters.blend("new", {"plain": 1.0, name: 0.5})
    for weights in ({}, {"plain": float("nan")}, {"plain": float("inf")}, {"plain": "1"}):
        with pytest.raises(InputError, match="finite weights"):
            decoder.adapters.blend("new", weights)
    with pytest.raises(NotFoundError, match="no adapter of this name is loaded: got 'x'"):
        decoder.adapters.blend("new", {"plain": 1.0, "x": 1.0})
    with pytest.raises(InputError, match="released more often"):  # it was held and let go
        decoder.adapters.release(decoder.adapters.get("plain"))
    wide = tiny_adapters.write_adapter(tmp_path / "wide", cfg, {**tiny_adapters.PEFT, "r": 256})
    for number in range(9):
        decoder.adapters.load(f"w{number}", wide)
    decoder.adapters.blend("half", {f"w{number}": 0.1 for number in range(8)})
    with pytest.raises(InputError, match="rank 4352, more than 4096"):
        decoder.adapters.blend("new", {"half": 1.0, **{f"w{number}": 0.1 for number in range(9)}})
    assert [a.name for a in decoder.adapters] == [*FOUR, *(f"w{n}" for n in range(9)), "half"]


@pytest.mark.parametrize("name", ENCODERS)
def test_vectors_are_those_of_peft(tmp_path: Path, name: str) -> None:
    cfg = tiny.CONFIGS["bert"]
    encoder = Encoder(open_checkpoint(tiny.write_folder(tmp_path / "bert", cfg)), Head("mean"))
    adapter = encoder.adapters.load("a", tiny_adapters.write_case(tmp_path / name, name))
    ids = tiny.token_ids(cfg, TOKENS)
    got = encoder.adapted_vectors([ids], np.asarray([adapter.index], np.int32))[0]
    assert np.abs(got - GOLDEN[name]).max() <= LIMIT / 4
    assert np.abs(got - encoder.vectors([ids])[0]).max() > 100 * LIMIT


@pytest.mark.parametrize("compute", ["f32", "f16", "bf16", "bf16x3", "int8"])
def test_texts_with_adapters_have_the_same_vectors_in_any_batch(tmp_path: Path, compute: str) -> None:
    cfg = {**tiny.CONFIGS["bert"], "hidden_size": 64, "intermediate_size": 128}
    encoder = Encoder(open_checkpoint(tiny.write_folder(tmp_path / "bert", cfg)), Head("mean"), compute=compute)
    indices = [0]
    for seed, name in enumerate(ENCODERS):
        _, settings, dtype = tiny_adapters.CASES[name]
        folder = tiny_adapters.write_adapter(tmp_path / name, cfg, settings, dtype, seed)
        indices.append(encoder.adapters.load(name, folder).index)
    rng = np.random.default_rng(3)
    texts = [tiny.token_ids(cfg, int(n), seed=i) for i, n in enumerate(rng.integers(1, 60, 12))]
    chosen = np.asarray([indices[i % 3] for i in range(len(texts))], np.int32)
    alone = [encoder.adapted_vectors([text], chosen[i : i + 1])[0] for i, text in enumerate(texts)]
    assert np.array_equal(alone[0], encoder.vectors(texts[:1])[0])
    for _ in range(10):
        order = rng.permutation(len(texts))[: rng.integers(1, len(texts) + 1)]
        vectors = encoder.adapted_vectors([texts[i] for i in order], chosen[order])
        assert all(np.array_equal(vector, alone[i]) for vector, i in zip(vectors, order))
    with pytest.raises(InputError, match=r"adapters must be int32 \[2\]"):
        encoder.adapted_vectors(texts[:2], chosen[:1])
    with pytest.raises(InputError, match="no adapter has the index 9"):
        encoder.adapted_vectors(texts[:1], np.asarray([9], np.int32))


def test_a_norm_of_an_encoder_is_not_adapted(tmp_path: Path) -> None:
    cfg, settings = tiny.CONFIGS["bert"], {**tiny_adapters.PEFT_BERT, "target_modules": ["query"], "bias": "all"}
    folder = tiny_adapters.write_adapter(tmp_path / "norm", cfg, settings)
    file = folder / "adapter_model.safetensors"
    tensors = {key: view.numpy() for key, view in open_safetensors(file).tensors.items()}
    tensors["base_model.model.embeddings.LayerNorm.bias"] = np.ones(48, np.float32)
    write_safetensors(file, tensors)
    encoder = Encoder(open_checkpoint(tiny.write_folder(tmp_path / "bert", cfg)), Head("mean"))
    with pytest.raises(UnsupportedError, match=r"the adapter changes embeddings\.LayerNorm"):
        encoder.adapters.load("norm", folder)
