"""Adapters on a GPU: what peft computes, each sequence of a batch with its own, tables that change while steps run."""

import numpy as np
import pytest
import tiny
import tiny_adapters
import tiny_expert_adapters
from gpus import ALL, GOLDEN

import weft
from weft.backends.base import WantedTable
from weft.backends.webgpu.layers.adapters import GpuAdapterTable, HostWeight
from weft.generate import Request
from weft.runtime import Decoder, Encoder, Head, open_checkpoint
from weft.runtime.paged.holding import slots_of
from weft.runtime.steps import build_step

PEFT = dict(np.load(GOLDEN / "adapters" / "tiny-adapters.npz"))
EXPERTS = dict(np.load(GOLDEN / "adapters" / "tiny-expert-adapters.npz"))
LIMIT = 2e-4  # of what peft gives, in logits of a few units
TOKENS = 17
DECODING = [name for name in tiny_adapters.CASES if not name.startswith("bert")]
FEW = ["llama-dora", "llama-embed", "llama-tied-head"]
KINDS = {
    "plain": tiny_adapters.PEFT,
    "patterns": {
        **tiny_adapters.PEFT,
        **tiny_adapters.PATTERNS,
        "target_modules": [*tiny_adapters.ALL, "embed_tokens"],
    },
    "dora": {**tiny_adapters.PEFT, "use_dora": True, "r": 20},
    "whole": {**tiny_adapters.PEFT, "target_modules": ["v_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
}


def decoder_of(gpu, folder, cfg, **options):
    path = folder / "model"
    return Decoder(open_checkpoint(tiny.write_folder(path, cfg)), context=128, backend=gpu, **options)


@pytest.mark.parametrize("name", DECODING if ALL else FEW)
def test_logits_are_those_of_peft(gpu, tmp_path, name):
    cfg = tiny.CONFIGS[tiny_adapters.CASES[name][0]]
    decoder, ids = decoder_of(gpu, tmp_path, cfg), tiny.token_ids(cfg, TOKENS)
    adapter = decoder.adapters.load("a", tiny_adapters.write_case(tmp_path / name, name))
    got = decoder.logits(ids, adapter=adapter)
    assert np.abs(got - PEFT[name]).max() <= LIMIT
    assert np.array_equal(got, decoder.logits(ids, adapter=adapter, chunk=5))


@pytest.mark.parametrize("name", tiny_expert_adapters.CASES if ALL else ["qwen3_moe-parameters"])
def test_experts_are_adapted_as_peft_does(gpu, tmp_path, name):
    cfg = tiny.CONFIGS[tiny_expert_adapters.CASES[name][0]]
    decoder, ids = decoder_of(gpu, tmp_path, cfg), tiny.token_ids(cfg, TOKENS)
    adapter = decoder.adapters.load("a", tiny_expert_adapters.write_case(tmp_path / "a", name))
    got = decoder.logits(ids, adapter=adapter)
    assert np.abs(got - EXPERTS[name]).max() <= LIMIT
    assert np.array_equal(got, decoder.logits(ids, adapter=adapter, chunk=5))


@pytest.mark.parametrize("name", ["llama-grouped", "qwen3_moe", "qwen3_5_text"] if ALL else ["llama-grouped"])
def test_adapters_and_none_in_one_batch_have_the_bits_of_each_alone(gpu, tmp_path, name):
    """Alone without an adapter is the program that knows none."""
    cfg = tiny.CONFIGS[name]
    decoder, found = decoder_of(gpu, tmp_path, cfg), [None]
    for seed, (kind, settings) in enumerate(KINDS.items(), 1):
        if name != "llama-grouped":
            if kind not in ("plain", "dora"):
                continue
            settings = {**settings, "target_modules": ["q_proj", "o_proj"]}
        folder = tiny_adapters.write_adapter(tmp_path / kind, cfg, settings, ("f32", "f16", "bf16")[seed % 3], seed)
        found.append(decoder.adapters.load(kind, folder))
    rng = np.random.default_rng(4)
    texts = [tiny.token_ids(cfg, n, seed=7) for n in (33, 3, 40, 17, 9)[: len(found)]]
    alone = [decoder.logits(text, adapter=adapter)[-1] for text, adapter in zip(texts, found)]
    assert len({row.tobytes() for row in alone}) == len(found)
    for _ in range(6 if ALL else 2):
        holdings, done, last = [decoder.holding() for _ in texts], [0] * len(texts), {}
        for holding, text in zip(holdings, texts):
            assert holding.grow(len(text))
        while any(at < len(text) for at, text in zip(done, texts)):
            going = [int(i) for i in rng.permutation(len(texts)) if done[i] < len(texts[i])]
            going = going[: rng.integers(1, len(going) + 1)]
            held = [holdings[i] for i in going]
            for holding in held:
                holding.ready()
            sizes = [min(int(rng.choice([1, 9, 33])), len(texts[i]) - done[i]) for i in going]
            step = build_step(
                [texts[i][done[i] : done[i] + n] for i, n in zip(going, sizes)],
                starts=[done[i] for i in going],
                asked=[1] * len(going),
                pages=[holding.row for holding in held],
                slots=slots_of(held),
                adapters=[0 if found[i] is None else found[i].index for i in going],
            )
            for i, n, row in zip(going, sizes, decoder.run(step)):
                done[i] += n
                last[i] = row
                holdings[i].advance()
        for holding in holdings:
            holding.release()
        assert all(np.array_equal(last[i], row) for i, row in enumerate(alone))


def test_texts_with_adapters_have_the_same_vectors_in_any_batch(gpu, tmp_path):
    cfg = tiny.CONFIGS["bert"]
    encoder = Encoder(open_checkpoint(tiny.write_folder(tmp_path / "bert", cfg)), Head("mean"), backend=gpu)
    ids = tiny.token_ids(cfg, TOKENS)
    indices = [0]
    for name in ("bert-plain", "bert-dora-bias"):
        indices.append(encoder.adapters.load(name, tiny_adapters.write_case(tmp_path / name, name)).index)
        got = encoder.adapted_vectors([ids], np.asarray(indices[-1:], np.int32))[0]
        assert np.abs(got - PEFT[name]).max() <= LIMIT / 4
    texts = [tiny.token_ids(cfg, n, seed=n) for n in (5, 17, 30)]
    chosen = np.asarray(indices, np.int32)
    alone = [encoder.adapted_vectors([text], chosen[i : i + 1])[0] for i, text in enumerate(texts)]
    assert np.array_equal(alone[0], encoder.vectors(texts[:1])[0])
    for order in ([2, 1, 0], [1, 2], [0, 2, 1]):
        vectors = encoder.adapted_vectors([texts[i] for i in order], chosen[order])
        assert all(np.array_equal(vector, alone[i]) for vector, i in zip(vectors, order))


def test_adapters_are_loaded_replaced_and_unloaded_while_requests_run(gpu, tmp_path):
    """Requests keep the version that they began with; tables grow meanwhile, and give their room back."""
    cfg = tiny.CONFIGS["llama-grouped"]
    folders = [tiny_adapters.write_adapter(tmp_path / f"a{n}", cfg, KINDS["dora"], "f32", n) for n in (1, 2, 3)]
    model = weft.load(str(tiny.write_folder(tmp_path / "model", cfg)), device="gpu", context=96)
    loaded = model.decoder.adapters
    alone = []
    for number, folder in enumerate(folders):
        loaded.load(f"alone{number}", folder)
        alone.append(model.generate([1, 5, 9], max_tokens=12, ignore_eos=True, adapter=f"alone{number}").tokens)
        loaded.unload(f"alone{number}")
    plain = model.generate([1, 5, 9], max_tokens=12, ignore_eos=True).tokens
    assert len({tuple(tokens) for tokens in (plain, *alone)}) == 4
    engine = weft.Engine(model)
    loaded.load("a", folders[0])
    first = engine.submit(Request([1, 5, 9], max_tokens=12, ignore_eos=True, adapter="a"))
    none = engine.submit(Request([1, 5, 9], max_tokens=12, ignore_eos=True))
    for _ in range(4):
        engine.step()
    loaded.replace("a", folders[1])
    second = engine.submit(Request([1, 5, 9], max_tokens=12, ignore_eos=True, adapter="a"))
    engine.step()
    loaded.unload("a")
    loaded.load("b", folders[2])
    third = engine.submit(Request([1, 5, 9], max_tokens=12, ignore_eos=True, adapter="b"))
    assert [one.result().tokens for one in (first, second, third, none)] == [*alone, plain]
    sizes = {table.nbytes for table in loaded.tables.values()}
    for _ in range(20):
        loaded.replace("b", folders[0])
    assert {table.nbytes for table in loaded.tables.values()} == sizes


def test_a_table_gives_its_room_back(gpu):
    table = GpuAdapterTable(gpu.device, WantedTable("w", 8, 16, 3))

    def put(index, rank, matrix=0):
        down, up = HostWeight(np.ones((rank, 16), np.float32)), HostWeight(np.ones((8, rank), np.float32))
        table.put(index, down, up, HostWeight(np.ones(rank, np.float32)), None, None, matrix)

    put(1, 4)
    put(2, 8, matrix=2)
    size = table.nbytes
    for _ in range(10):
        table.clear(2)
        table.clear(2)  # an adapter that is not there
        put(2, 8, matrix=2)
        assert table.nbytes == size
    table.clear(1)
    table.clear(2)
    assert len(table._free) == 1 and sum(count for _, count in table._free) == table._end - 256
    assert not np.frombuffer(table.buffer.read(0, 1024), np.uint32).any()
