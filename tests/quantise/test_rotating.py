"""Rotated models compute what they computed, at any width, with adapters too; what cannot be rotated is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.embed import Embedder
from weft.errors import FormatError, InputError, UnsupportedError, WeightError
from weft.ops.hadamard import hadamard, mixing, split
from weft.quantise import Quantising, QuantisingFolder
from weft.quantise.folder import MANIFEST
from weft.quantise.rotating import rotated
from weft.runtime import Decoder, open_checkpoint
from weft.train.merge import merge
from weft.train.targets import products
from weft.weights import write_safetensors
from weft.weights.rotation import GAIN, MARK, MODEL_TYPE

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))
import tiny

BASE: dict[str, Any] = {**tiny.LLAMA, "vocab_size": 64, "num_hidden_layers": 2}


def shaped(hidden: int, heads: int, groups: int, inner: int, **more: Any) -> dict[str, Any]:
    return {
        **BASE,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": inner,
        **more,
    }


# hidden sizes of 1, 3, 9 and 3 times a power of two; heads that are and are not one
MODELS = {
    "64": shaped(64, 4, 2, 128),
    "96": shaped(96, 6, 2, 160, tie_word_embeddings=True),
    "576": shaped(576, 9, 3, 1536, num_hidden_layers=1),
    "1536": shaped(1536, 12, 2, 1792, num_hidden_layers=1),
    "biases": shaped(64, 4, 4, 96, attention_bias=True, mlp_bias=True),
    "qwen2": shaped(96, 6, 2, 96, model_type="qwen2", tie_word_embeddings=True),
    "qwen3": shaped(64, 4, 2, 96, model_type="qwen3", head_dim=32),
    "mistral": shaped(64, 4, 2, 96, model_type="mistral", sliding_window=8),
    "smollm3": shaped(64, 4, 2, 96, model_type="smollm3", no_rope_layers=[1, 0], tie_word_embeddings=True),
}


def tensors_of(config: dict[str, Any], seed: int = 5) -> dict[str, np.ndarray]:
    """Random weights, with gains of norms and biases that are far from one and zero."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in tiny.llama_shapes(config).items():
        values = rng.standard_normal(shape).astype(np.float32)
        if name.endswith("norm.weight"):
            values = np.exp(0.5 * values)
        elif len(shape) == 2 and "embed" not in name:
            values /= np.sqrt(np.float32(shape[1]))
        found[name] = values
    return found


def folder_of(folder: Path, config: dict[str, Any]) -> Path:
    return tiny.write_folder(folder, config, tensors_of(config))


def rotated_folder(source: Path, target: Path, parts: str = "all") -> Path:
    """The model of a folder, rotated and not rounded: float32."""
    config = json.loads((source / "config.json").read_text())
    made = rotated(source, open_checkpoint_tensors(source), config, parts)
    assert made.check() < 1e-12
    target.mkdir()
    write_safetensors(target / "model.safetensors", {name: view.numpy() for name, view in made.tensors.items()})
    (target / "config.json").write_text(json.dumps(made.config(config)))
    return target


def open_checkpoint_tensors(source: Path) -> dict[str, Any]:
    return {name: tensor.view for name, tensor in open_checkpoint(source).tensors.items()}


def logits(path: Path, config: dict[str, Any], *, compute: str = "f32", adapter: Path | None = None) -> np.ndarray:
    decoder = Decoder(open_checkpoint(path), compute=compute, kv_dtype="f32")
    ids = tiny.token_ids(config, 24)
    return decoder.logits(ids, adapter=None if adapter is None else decoder.adapters.load("a", adapter))


def apart(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize(
    ("name", "parts"), [*((name, "all") for name in MODELS), ("96", "inner"), ("biases", "inner"), ("qwen3", "inner")]
)
def test_rotation_alone_keeps_the_logits(name, parts, tmp_path) -> None:
    config = MODELS[name]
    source = folder_of(tmp_path / "model", config)
    target = rotated_folder(source, tmp_path / "rotated", parts)
    found, wanted = logits(target, config), logits(source, config)
    assert apart(found, wanted) < 1e-5
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()
    before, after = open_checkpoint(source).tensors, open_checkpoint(target).tensors
    for part in ("self_attn.o_proj", "mlp.down_proj", "self_attn.v_proj"):  # and nothing is as it was
        weight = f"model.layers.0.{part}.weight"
        assert apart(after[weight].numpy(), before[weight].numpy()) > 0.5
    for weight in ("model.embed_tokens.weight", "model.norm.weight", "model.layers.0.mlp.up_proj.weight"):
        assert (apart(after[weight].numpy(), before[weight].numpy()) > 0.1) == (parts == "all")
    assert ("lm_head.weight" in after) == (parts == "all" or not config["tie_word_embeddings"])


@pytest.mark.parametrize("width", [64, 96, 576, 1536, 5120, 35 * 256])
def test_the_turn_of_any_width_is_orthogonal_and_spreads(width) -> None:
    from weft.weights.rotation import Rotation

    rotation = Rotation(3, 32)
    one = np.zeros((1, width))
    one[0, width // 3] = 1.0
    turned = rotation.turn("stream", one)
    parts, size = split(width)
    rows = np.random.default_rng(1).standard_normal((3, width))
    factor = mixing(parts)
    same = hadamard.reference(rows, factor, size=size)  # the op turns rows as weights were turned
    assert np.allclose(rotation.turn("inner", rows), same, atol=1e-12)
    assert np.linalg.norm(turned) == pytest.approx(1.0, abs=1e-12)
    assert np.abs(turned).max() <= (1.0 if parts == 1 else np.sqrt(2.0)) / np.sqrt(width) + 1e-12
    assert np.allclose(rotation.unturned(turned), one, atol=1e-12)
    if factor is not None:
        square = factor.reshape(parts, parts)
        assert np.allclose(square @ square.T, np.eye(parts), atol=1e-12)


def test_a_folder_is_rotated_rounded_and_read_back(tmp_path) -> None:
    """Channels that stand out cost 4 bits much; turned they do not, and int8 activations read the same folder."""
    config = MODELS["96"]
    tensors = tensors_of(config)
    for name, values in tensors.items():
        if values.ndim == 2 and "embed" not in name:
            values[:, ::31] *= 12
    source = tiny.write_folder(tmp_path / "model", config, tensors)
    wanted = logits(source, config)
    lost = {}
    for rotate in (None, "inner", "all"):
        output = tmp_path / f"out-{rotate}"
        work = QuantisingFolder(source, output, type="int4", group=32, rotate=rotate)
        written = list(work)
        lost[rotate] = apart(logits(output, config), wanted)
        assert {one.after for one in written if "_proj.weight" in one.name} == {"int4"}
    assert lost["all"] < lost["inner"] < lost[None] and lost["all"] < 0.7 * lost[None]
    rounded = logits(output, config)
    assert apart(logits(output, config, compute="int8"), rounded) < 0.1
    said = json.loads((output / "config.json").read_text())
    assert said["model_type"] == MODEL_TYPE and said["tie_word_embeddings"] is False
    assert said[MARK]["model_type"] == "llama" and "LlamaForCausalLM" not in said["architectures"]
    manifest = json.loads((output / MANIFEST).read_text())["rotation"]
    assert manifest["seed"] == 0 and manifest["stream"] is True and manifest["difference"] < 1e-12
    again = tmp_path / "again"
    list(QuantisingFolder(source, again, type="int4", group=32, rotate="all", threads=2))
    files = [path / "model.safetensors" for path in (output, again)]
    assert files[0].read_bytes() == files[1].read_bytes()
    list(QuantisingFolder(source, tmp_path / "other", type="int4", group=32, rotate="all", seed=1))
    assert files[0].read_bytes() != (tmp_path / "other" / "model.safetensors").read_bytes()


def adapter_of(folder: Path, config: dict[str, Any], *, dora: bool = False) -> Path:
    rng = np.random.default_rng(9)
    tensors = {}
    for name, shape in tiny.llama_shapes(config).items():
        if len(shape) != 2 or (dora and not name.endswith("q_proj.weight")):
            continue
        module, ranks = f"base_model.model.{name.removesuffix('.weight')}", 4
        outs, ins = shape[::-1] if "embed" in name else shape
        ends = ("lora_embedding_A", "lora_embedding_B") if "embed" in name else ("lora_A.weight", "lora_B.weight")
        tensors[f"{module}.{ends[0]}"] = (rng.standard_normal((ranks, ins)) / np.sqrt(ins)).astype(np.float32)
        tensors[f"{module}.{ends[1]}"] = rng.standard_normal((outs, ranks)).astype(np.float32)
        if dora:
            tensors[f"{module}.lora_magnitude_vector"] = np.ones(outs, np.float32)
    folder.mkdir()
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    about = {"peft_type": "LORA", "r": 4, "lora_alpha": 2, "target_modules": "all-linear", "use_dora": dora}
    (folder / "adapter_config.json").write_text(json.dumps(about))
    return folder


@pytest.mark.parametrize(("name", "parts"), [("64", "all"), ("qwen3", "all"), ("64", "inner")])
def test_adapters_are_rotated_when_they_are_loaded(name, parts, tmp_path) -> None:
    config = MODELS[name]
    source = folder_of(tmp_path / "model", config)
    target = rotated_folder(source, tmp_path / "rotated", parts)
    adapter = adapter_of(tmp_path / "adapter", config)
    wanted = logits(source, config, adapter=adapter)
    assert apart(wanted, logits(source, config)) > 0.1
    assert apart(logits(target, config, adapter=adapter), wanted) < 2e-5
    if (name, parts) == ("64", "all"):
        with pytest.raises(UnsupportedError, match=r"magnitude.*merge the adapter"):
            logits(target, config, adapter=adapter_of(tmp_path / "dora", config, dora=True))


def test_what_cannot_be_rotated_is_refused_by_name(tmp_path) -> None:
    plain = folder_of(tmp_path / "plain", MODELS["64"])

    def refused(config: dict[str, Any], complaint: str, **files: str) -> None:
        tensors = open_checkpoint_tensors(plain)
        (tmp_path / "odd").mkdir(exist_ok=True)
        for name, text in files.items():
            (tmp_path / "odd" / name.replace("_", ".")).write_text(text)
        with pytest.raises(UnsupportedError, match=complaint):
            rotated(tmp_path / "odd", tensors, config, "all")

    refused({**MODELS["64"], "model_type": "gemma2"}, "gemma2 norms what a layer adds.*leave --rotate out")
    refused({**MODELS["64"], "model_type": "bert"}, "bert subtracts means")
    refused({**MODELS["64"], "model_type": "qwen3_moe"}, "qwen3_moe is not known to be a plain decoder")
    refused({**MODELS["64"], "is_causal": False}, "is an embedder")
    refused({**MODELS["64"], "intermediate_size": 2 * 257}, "257 times a power of two")
    refused(MODELS["64"], "is an embedder", modules_json="[]")
    with pytest.raises(InputError, match="seed must be a whole number"):
        rotated(plain, {}, MODELS["64"], "all", -1)
    with pytest.raises(InputError, match="rotate must be one of inner, all"):
        rotated(plain, {}, MODELS["64"], "some")
    more = {**open_checkpoint_tensors(plain), "model.layers.0.mlp.extra.weight": None}
    with pytest.raises(UnsupportedError, match=r"extra.weight is no tensor of a plain decoder"):
        rotated(plain, more, MODELS["64"], "all")
    values = tensors_of(MODELS["64"])
    values["model.layers.1.mlp.down_proj.weight"][3, 5] = np.nan
    broken = tiny.write_folder(tmp_path / "broken", MODELS["64"], values)
    work = QuantisingFolder(broken, tmp_path / "out", type="int4", group=32, rotate="all")
    with pytest.raises(WeightError, match=r"layers.1.mlp.down_proj.*nothing was written"):
        list(work)
    assert not list(tmp_path.glob("*out*"))


def test_a_rotated_model_is_not_taken_for_another(tmp_path) -> None:
    config = MODELS["64"]
    source = folder_of(tmp_path / "model", config)
    target = rotated_folder(source, tmp_path / "rotated")
    with pytest.raises(UnsupportedError, match=r"quantised again.*model as it was"):
        QuantisingFolder(target, tmp_path / "out", type="int4", group=32)
    with pytest.raises(UnsupportedError, match="GGUF has no words"):
        Quantising(target, tmp_path / "out.gguf", type="q8_0")
    with pytest.raises(UnsupportedError, match="adapters are trained before"):
        products(open_checkpoint(target))
    with pytest.raises(UnsupportedError, match="rotated"):
        merge(target, adapter_of(tmp_path / "adapter", config), tmp_path / "merged")
    with pytest.raises(UnsupportedError, match="its vectors"):
        Embedder(target, pooling="mean")
    said = json.loads((target / "config.json").read_text())
    for change, error, complaint in (
        ({"version": 2}, UnsupportedError, "version"),
        ({"head": 0}, FormatError, "head"),
        ({"stream": 1}, FormatError, "stream"),
        ({"turned": {}}, FormatError, "turned"),
        ({"model_type": None}, FormatError, "model_type"),
    ):
        (target / "config.json").write_text(json.dumps({**said, MARK: {**said[MARK], **change}}))
        with pytest.raises(error, match=complaint):
            open_checkpoint(target)
    assert any(name.startswith(GAIN) for name in open_checkpoint_tensors_raw(target, said))


def open_checkpoint_tensors_raw(target: Path, said: dict[str, Any]) -> list[str]:
    (target / "config.json").write_text(json.dumps(said))
    return list(open_checkpoint(target).tensors)


def test_the_command_says_what_it_did(tmp_path) -> None:
    from click.testing import CliRunner

    from weft.cli.app import app

    def run(*more: str) -> tuple[int, str]:
        found = CliRunner().invoke(app, ["quantize", str(source), "-o", str(tmp_path / "out"), *more])
        return found.exit_code, found.output

    source = folder_of(tmp_path / "model", MODELS["96"])
    code, said = run("--type", "q4_0", "--rotate", "all")
    assert code == 2 and "GGUF has no words" in said
    code, said = run("--type", "int4", "--group", "32", "--rotate", "all")
    assert code == 0 and "in float64 every tensor gives the same results" in said and "lm_head.weight" in said
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == MODEL_TYPE
