"""Versions of adapters: loaded, held, replaced while steps run and freed; what does not fit the model is refused."""

import gc
import json
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
import tiny_adapters
from soaking import times

from weft.errors import InputError, NotFoundError, UnsupportedError, WeightError
from weft.runtime import Decoder, Encoder, Head, Step, open_checkpoint
from weft.weights.safetensors import open_safetensors, write_safetensors


def base(tmp_path: Path, cfg: dict, **options: object) -> Decoder:
    return Decoder(open_checkpoint(tiny.write_folder(tmp_path / "model", cfg)), **options)


def live(decoder: Decoder) -> int:
    """How many versions the tables hold: indices with a part in any table."""
    return sum(any(t.holds(i) for t in decoder.adapters.tables.values()) for i in range(1, 256))


def test_a_version_lives_as_long_as_someone_holds_it(tmp_path: Path) -> None:
    cfg = tiny.CONFIGS["llama-grouped"]
    decoder, ids = base(tmp_path, cfg), tiny.token_ids(cfg, 5)
    folders = [tiny_adapters.write_adapter(tmp_path / f"a{seed}", cfg, seed=seed) for seed in range(3)]
    adapters = decoder.adapters
    old = adapters.hold(adapters.load("a", folders[0]))
    before = decoder.logits(ids, adapter=old)
    new = adapters.replace("a", folders[1])
    assert new.generation > old.generation and new.index != old.index and new.digest != old.digest
    assert adapters.get("a") is new and live(decoder) == 2
    assert np.array_equal(decoder.logits(ids, adapter=old), before)
    assert not np.array_equal(decoder.logits(ids, adapter=new), before)
    adapters.release(old)
    assert live(decoder) == 1
    for use in (lambda: adapters.hold(old), lambda: adapters.release(old), lambda: decoder.logits(ids, adapter=old)):
        with pytest.raises(InputError):
            use()
    assert adapters.hold("a") is new
    adapters.unload("a")
    assert len(adapters) == 0 and live(decoder) == 1
    with pytest.raises(NotFoundError):
        adapters.get("a")
    assert not np.array_equal(decoder.logits(ids, adapter=new), before)
    adapters.release(new)
    assert live(decoder) == 0
    reloaded = adapters.load("a", folders[0])
    assert reloaded.digest == old.digest and reloaded.generation == 3
    assert np.array_equal(decoder.logits(ids, adapter=reloaded), before)
    with pytest.raises(InputError, match="released more often"):
        adapters.release(reloaded)


def memory_kb() -> int:
    """What the process has in memory, where the system tells."""
    counts = Path("/proc/self/statm")
    return int(counts.read_text().split()[1]) * 4 if counts.exists() else 0


@pytest.mark.soak
def test_replacing_many_times_while_steps_run(tmp_path: Path) -> None:
    """Every step has the logits of the version it held; nothing is left behind."""
    cfg = tiny.CONFIGS["llama-grouped"]
    decoder, ids = base(tmp_path, cfg, threads=2), tiny.token_ids(cfg, 6)
    adapters = decoder.adapters
    folders = [tiny_adapters.write_adapter(tmp_path / f"a{seed}", cfg, seed=seed) for seed in range(5)]
    adapters.load("a", folders[0])
    right = {}
    for folder in folders:
        version = adapters.replace("a", folder)
        right[version.digest] = decoder.logits(ids, adapter=version)
    assert len({logits.tobytes() for logits in right.values()}) == 5
    done, wrong, seen = threading.Event(), [], []

    def step() -> None:
        while not done.is_set():
            held = adapters.hold("a")
            try:
                logits = decoder.logits(ids, adapter=held, chunk=2)
            finally:
                adapters.release(held)
            seen.append(held.generation)
            if not np.array_equal(logits, right[held.digest]):
                wrong.append(held.generation)

    workers = [threading.Thread(target=step) for _ in range(2)]
    for worker in workers:
        worker.start()
    sizes = []
    count = times(1000, 300)
    for number in range(count):
        adapters.replace("a", folders[number % 5])
        if number in (count // 5, count - 1):
            gc.collect()
            sizes.append(memory_kb())
    done.set()
    for worker in workers:
        worker.join()
    assert not wrong
    assert len(set(seen)) > 20
    assert live(decoder) == 1
    assert sizes[1] - sizes[0] < 20_000, sizes


def test_names_and_numbers_of_adapters_are_checked(tmp_path: Path) -> None:
    cfg = tiny.CONFIGS["llama-grouped"]
    decoder = base(tmp_path, cfg)
    folder = tiny_adapters.write_adapter(tmp_path / "a", cfg)
    adapters = decoder.adapters
    for name in ("", "a" * 201, "a\nb", 3):
        with pytest.raises(InputError, match="must be 1 to 200 printable"):
            adapters.load(name, folder)  # type: ignore[arg-type]
    for number in range(16):
        adapters.load(f"a{number}", folder)
    with pytest.raises(InputError, match="16 adapters are already loaded"):
        adapters.load("one more", folder)
    adapters.limit = 17
    adapters.load("one more", folder)
    adapters.replace("a3", folder)
    with pytest.raises(InputError, match="already loaded; replace it"):
        adapters.load("a3", folder)
    with pytest.raises(NotFoundError):
        adapters.replace("unknown", folder)
    with pytest.raises(NotFoundError):
        adapters.unload("unknown")
    assert live(decoder) == 17


def test_a_step_with_an_index_that_is_none_is_refused(tmp_path: Path) -> None:
    cfg = tiny.CONFIGS["llama-grouped"]
    decoder = base(tmp_path, cfg)
    decoder.adapters.load("a", tiny_adapters.write_adapter(tmp_path / "a", cfg))
    one = np.zeros(1, np.int32)
    table = np.zeros((1, decoder.max_pages), np.int32)
    step = {"ids": one, "positions": one, "segments": np.asarray([0, 1], np.int32), "rows": one, "pages": table}
    for index in (2, -1, 255, 256, 1 << 20):
        with pytest.raises(InputError, match="no adapter has the index"):
            decoder.run(Step(**step, adapters=np.asarray([index], np.int32)))
    with pytest.raises(InputError):  # one index for each sequence
        decoder.run(Step(**step, adapters=np.asarray([1, 1], np.int32)))
    decoder.run(Step(**step, adapters=np.asarray([1], np.int32)))


Change = Callable[[dict, dict], None]


def moved(tensors: dict, old: str, new: str) -> None:
    tensors[new] = tensors.pop(old)


EMBED = "base_model.model.model.embed_tokens"
SHAPES = tiny_adapters.tensors(tiny.CONFIGS["llama-grouped"], tiny_adapters.PEFT)
ADAPTED = [key for key in SHAPES if key.endswith(".lora_A.weight")]


def magnitudes(key: str) -> np.ndarray:
    return np.ones(len(SHAPES[key.replace("lora_A", "lora_B")]), np.float32)


Q, HEAD = "base_model.model.model.layers.0.self_attn.q_proj", "base_model.model.lm_head"
MISFITS: dict[str, tuple[Change, type[Exception], str]] = {
    "another layer": (
        lambda s, t: [moved(t, f"{Q}.lora_{x}.weight", f"{Q.replace('0', '9')}.lora_{x}.weight") for x in "AB"],
        WeightError,
        "has no module model.layers.9.self_attn.q_proj",
    ),
    "a module of another family": (
        lambda s, t: (
            [moved(t, f"{Q}.lora_{x}.weight", f"base_model.model.model.layers.0.mlp.w1.lora_{x}.weight") for x in "AB"],
            s.update(target_modules=None),
        ),
        WeightError,
        "no module model.layers.0.mlp.w1",
    ),
    "an embedding of another vocabulary": (
        lambda s, t: (
            t.update({"base_model.model.model.embed_tokens.weight": np.ones((102, 48), np.float32)}),
            s.update(modules_to_save=["embed_tokens"]),
        ),
        WeightError,
        r"embed_tokens: weight has shape \(102, 48\), the model needs \(101, 48\)",
    ),
    "an embedding's matrices the wrong way round": (
        lambda s, t: (
            t.update({f"{EMBED}.lora_embedding_{x}": np.ones((4, n), np.float32) for x, n in (("A", 48), ("B", 4))}),
            s.update(target_modules=None),
        ),
        WeightError,
        r"embed_tokens: down has shape \(4, 48\), the model needs \(4, 101\)",
    ),
    "a direction of an embedding": (
        lambda s, t: (
            t.update({f"{EMBED}.lora_embedding_A": np.ones((4, 101), np.float32)}),
            t.update({f"{EMBED}.lora_embedding_B": np.ones((48, 4), np.float32)}),
            t.update(
                {f"{key.removesuffix('.lora_A.weight')}.lora_magnitude_vector": magnitudes(key) for key in ADAPTED}
            ),
            t.update({f"{EMBED}.lora_magnitude_vector": np.ones(48, np.float32)}),
            s.update(target_modules=None, use_dora=True),
        ),
        UnsupportedError,
        r"embed_tokens is an embedding, which cannot be adapted this way \(use_dora\)",
    ),
    "a norm": (
        lambda s, t: (
            t.update({"base_model.model.model.norm.weight": np.ones((48, 1), np.float32)}),
            s.update(modules_to_save=["norm"]),
        ),
        UnsupportedError,
        "modules_to_save changes model.norm",
    ),
    "too few inputs": (
        lambda s, t: t.update({f"{Q}.lora_A.weight": np.ones((4, 47), np.float32)}),
        WeightError,
        r"down has shape \(4, 47\), the model needs \(4, 48\)",
    ),
    "too many outputs": (
        lambda s, t: t.update({f"{Q}.lora_B.weight": np.ones((49, 4), np.float32)}),
        WeightError,
        r"up has shape \(49, 4\), the model needs \(48, 4\)",
    ),
    "a head of another vocabulary": (
        lambda s, t: (
            t.update({f"{HEAD}.weight": np.ones((100, 48), np.float32)}),
            s.update(modules_to_save=["lm_head"]),
        ),
        WeightError,
        "weight has shape",
    ),
    "a bias that the model has not": (
        lambda s, t: (t.update({f"{Q}.base_layer.bias": np.ones(48, np.float32)}), s.update(bias="all")),
        WeightError,
        "a trained bias, but the model has no bias",
    ),
    "a number that is none": (
        lambda s, t: t.update({f"{Q}.lora_A.weight": np.full((4, 48), np.nan, np.float32)}),
        WeightError,
        "down holds numbers that are not finite",
    ),
    "an infinite number": (
        lambda s, t: t.update({f"{Q}.lora_B.weight": np.full((48, 4), np.inf, np.float16)}),
        WeightError,
        "up holds numbers that are not finite",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_the_model_is_refused_by_name(tmp_path: Path, name: str) -> None:
    change, kind, message = MISFITS[name]
    cfg = tiny.CONFIGS["llama-grouped"]
    decoder, folder = base(tmp_path, cfg), tiny_adapters.write_adapter(tmp_path / "a", cfg)
    file = folder / "adapter_model.safetensors"
    tensors = {key: view.numpy().copy() for key, view in open_safetensors(file).tensors.items()}
    settings = dict(tiny_adapters.PEFT)
    change(settings, tensors)
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    write_safetensors(file, tensors)
    with pytest.raises(kind, match=message):
        decoder.adapters.load("a", folder)
    assert len(decoder.adapters) == 0 and live(decoder) == 0


def test_a_module_under_two_names_is_refused(tmp_path: Path) -> None:
    """BERT is saved inside other models too, under a longer name."""
    cfg, settings = tiny.CONFIGS["bert"], {**tiny_adapters.PEFT_BERT, "target_modules": ["query"]}
    folder = tiny_adapters.write_adapter(tmp_path / "a", cfg, settings)
    file = folder / "adapter_model.safetensors"
    tensors = {key: view.numpy().copy() for key, view in open_safetensors(file).tensors.items()}
    inside = {key.replace("model.encoder.", "model.bert.encoder."): values for key, values in tensors.items()}
    encoder = Encoder(open_checkpoint(tiny.write_folder(tmp_path / "bert", cfg)), Head("mean"))
    write_safetensors(file, inside)
    encoder.adapters.load("inside", folder)
    write_safetensors(file, {**tensors, **inside})
    with pytest.raises(WeightError, match="are the same module of this model"):
        encoder.adapters.load("both", folder)
