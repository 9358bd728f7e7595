"""Adapter folders are read as PEFT and MLX write them; whatever else they hold is refused by name."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from soaking import times

from weft.errors import FormatError, NotFoundError, UnsupportedError, WeftError, WeightError
from weft.ops.packed import pack
from weft.weights.adapters import open_adapter
from weft.weights.files import TensorView
from weft.weights.safetensors import write_safetensors

Q, V, HEAD = "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.v_proj", "lm_head"
PEFT: dict[str, Any] = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj", "v_proj"],
    "bias": "none",
}
# What PEFT 0.21 writes beside that.
DEFAULTS: dict[str, Any] = {
    "alora_invocation_tokens": None,
    "alpha_pattern": {},
    "arrow_config": None,
    "auto_mapping": None,
    "base_model_name_or_path": "somewhere/else",
    "corda_config": None,
    "ensure_weight_tying": False,
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "kasa_config": None,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_bias": False,
    "lora_dropout": 0.1,
    "lora_ga_config": None,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "monteclora_config": None,
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    "rank_pattern": {},
    "revision": None,
    "runtime_config": {"ephemeral_gpu_offload": False},
    "target_parameters": None,
    "task_type": "CAUSAL_LM",
    "trainable_token_indices": None,
    "use_bdlora": None,
    "use_dora": False,
    "use_qalora": False,
    "use_rslora": False,
    "velora_config": None,
}
MLX: dict[str, Any] = {
    "fine_tune_type": "lora",
    "num_layers": 2,
    "lora_parameters": {"rank": 4, "scale": 20.0, "dropout": 0.0, "keys": ["self_attn.q_proj", "self_attn.v_proj"]},
    "model": "somewhere/else",
    "batch_size": 4,
    "iters": 1000,
    "learning_rate": 1e-5,
    "optimizer": "adam",
    "optimizer_config": {"adam": {}},
    "seed": 0,
    "train": True,
}
Tensors = dict[str, Any]


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def peft_tensors() -> Tensors:
    found = {}
    for module in (Q, V):
        found[f"base_model.model.{module}.lora_A.weight"] = values(4, 48)
        found[f"base_model.model.{module}.lora_B.weight"] = values(32, 4)
    return found


def mlx_tensors() -> Tensors:
    return {f"{module}.lora_{x}": values(*shape) for module in (Q, V) for x, shape in (("a", (48, 4)), ("b", (4, 32)))}


def write(folder: Path, config: Any, tensors: Tensors, name: str = "adapter_model.safetensors") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    write_safetensors(folder / name, tensors)
    return folder


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_peft_folder_is_read_as_it_is(tmp_path: Path, dtype: str) -> None:
    packed = {name: pack(array, dtype) for name, array in peft_tensors().items()}
    views = {name: TensorView(p.dtype, p.shape, p.data) for name, p in packed.items()}
    file = open_adapter(write(tmp_path, {**DEFAULTS, **PEFT}, views))
    assert (file.format, file.rank, set(file.modules)) == ("peft", 4, {Q, V})
    module = file.modules[Q]
    assert module.scale == 2.0 and module.down is not None and module.up is not None
    assert module.down.dtype.name == dtype and module.down.shape == (4, 48) and module.up.shape == (32, 4)
    assert np.array_equal(module.down.numpy(), packed[f"base_model.model.{Q}.lora_A.weight"].dense())


def test_an_mlx_folder_is_read_transposed(tmp_path: Path) -> None:
    tensors = mlx_tensors()
    file = open_adapter(write(tmp_path, MLX, tensors, "adapters.safetensors"))
    assert (file.format, file.rank, set(file.modules)) == ("mlx", 4, {Q, V})
    module = file.modules[V]
    assert module.scale == 20.0 and module.down is not None and module.up is not None
    assert np.array_equal(module.down.numpy(), tensors[f"{V}.lora_a"].T)
    assert np.array_equal(module.up.numpy(), tensors[f"{V}.lora_b"].T)


def test_mlx_dora_has_magnitudes(tmp_path: Path) -> None:
    tensors = {**mlx_tensors(), f"{Q}.m": values(32), f"{V}.m": values(32)}
    file = open_adapter(write(tmp_path, {**MLX, "fine_tune_type": "dora"}, tensors, "adapters.safetensors"))
    assert all(module.magnitude is not None for module in file.modules.values())


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"use_rslora": True}, 4.0),
        ({"lora_alpha": 6.5}, 1.625),
        ({"alpha_pattern": {"q_proj": 12}}, 3.0),
        ({"alpha_pattern": {"v_proj": 12}}, 2.0),
        ({"alpha_pattern": {"layers.0.self_attn.q_proj": 12, "q_proj": 16}}, 3.0),
        ({"alpha_pattern": {"q_proj": 16, "layers.0.self_attn.q_proj": 12}}, 4.0),
        ({"alpha_pattern": {f"^{Q}": 12}}, 3.0),
        ({"alpha_pattern": {"^q_proj": 12}}, 2.0),
        ({"alpha_pattern": {"q_proj": 12}, "use_rslora": True}, 6.0),
        ({"rank_pattern": {"q_proj": 4}, "r": 4}, 2.0),
    ],
)
def test_the_scale_follows_the_settings(tmp_path: Path, settings: dict[str, Any], scale: float) -> None:
    assert open_adapter(write(tmp_path, {**PEFT, **settings}, peft_tensors())).modules[Q].scale == scale


def test_ranks_follow_their_pattern(tmp_path: Path) -> None:
    tensors = peft_tensors()
    tensors[f"base_model.model.{Q}.lora_A.weight"] = values(9, 48)
    tensors[f"base_model.model.{Q}.lora_B.weight"] = values(32, 9)
    file = open_adapter(write(tmp_path, {**PEFT, "rank_pattern": {"self_attn.q_proj": 9}}, tensors))
    assert file.rank == 9 and math.isclose(file.modules[Q].scale, 8 / 9) and file.modules[V].scale == 2.0


def test_biases_and_whole_weights_are_kept(tmp_path: Path) -> None:
    tensors = {
        **peft_tensors(),
        f"base_model.model.{Q}.base_layer.bias": values(32),
        "base_model.model.model.layers.0.mlp.up_proj.bias": values(64),
        f"base_model.model.{HEAD}.weight": values(100, 48),
    }
    file = open_adapter(write(tmp_path, {**PEFT, "bias": "all", "modules_to_save": [HEAD]}, tensors))
    assert file.modules[Q].bias is not None and file.modules[HEAD].weight is not None
    up = file.modules["model.layers.0.mlp.up_proj"]
    assert up.bias is not None and up.rank == 0


Edit = Callable[[dict[str, Any], Tensors], Any]
A, B = f"base_model.model.{Q}.lora_A.weight", f"base_model.model.{Q}.lora_B.weight"


def setting(**changed: Any) -> Edit:
    return lambda config, tensors: config.update(changed)


def tensor(name: str, *shape: int) -> Edit:
    return lambda config, tensors: tensors.update({name: values(*shape)})


def both(*edits: Edit) -> Edit:
    return lambda config, tensors: [edit(config, tensors) for edit in edits]


BAD_PEFT: dict[str, tuple[Edit, type[WeftError], str]] = {
    "another method": (setting(peft_type="LOHA"), UnsupportedError, "peft_type must be LORA: got 'LOHA'"),
    "a rank of zero": (setting(r=0), FormatError, "r must be 1 to 256: got 0"),
    "a rank beyond the limit": (setting(r=257), FormatError, "r must be 1 to 256: got 257"),
    "a rank in words": (setting(r="4"), FormatError, "r must be an integer: got '4'"),
    "a rank that is true": (setting(r=True), FormatError, "r must be an integer: got True"),
    "an alpha in words": (setting(lora_alpha="8"), FormatError, "lora_alpha must be an integer or a number: got '8'"),
    "an alpha beyond numbers": (setting(lora_alpha=1e12), FormatError, "lora_alpha must be .*: got 1000000000000.0"),
    "patterns that are a list": (setting(rank_pattern=[]), FormatError, "rank_pattern must be an object: got"),
    "a pattern's rank of zero": (setting(rank_pattern={"q_proj": 0}), FormatError, "rank_pattern.q_proj"),
    "a pattern's alpha in words": (setting(alpha_pattern={"q_proj": "x"}), FormatError, "alpha_pattern.q_proj"),
    "a regular expression": (
        setting(alpha_pattern={"(a+)+$": 1}),
        UnsupportedError,
        "alpha_pattern must have names of modules as keys",
    ),
    "a rank that the file has not": (setting(rank_pattern={"q_proj": 8}), WeightError, "q_proj has rank 4, .* says 8"),
    "rsLoRA in words": (setting(use_rslora="yes"), FormatError, "use_rslora must be true or false: got 'yes'"),
    "an unknown bias": (setting(bias="some"), FormatError, "bias must be none, all or lora_only: got 'some'"),
    "weights transposed": (setting(fan_in_fan_out=True), UnsupportedError, "fan_in_fan_out must be false"),
    "pissa": (
        setting(init_lora_weights="pissa_niter_16"),
        UnsupportedError,
        "init_lora_weights must not .*: got 'pissa_niter_16'",
    ),
    "olora": (setting(init_lora_weights="olora"), UnsupportedError, "init_lora_weights must not .*: got 'olora'"),
    "layers repeated": (setting(layer_replication=[[0, 2], [1, 3]]), UnsupportedError, "layer_replication is"),
    "trained tokens": (
        setting(trainable_token_indices=[5]),
        UnsupportedError,
        r"trainable_token_indices is unknown .*: got \[5\]",
    ),
    "an activated adapter": (setting(alora_invocation_tokens=[1, 2]), UnsupportedError, "alora_invocation_tokens"),
    "a parameter that is not there": (setting(target_parameters=["w"]), WeightError, "names .w., for which"),
    "qalora": (setting(use_qalora=True), UnsupportedError, "use_qalora is unknown .*: got True"),
    "something new": (setting(shiny={"on": 1}), UnsupportedError, "shiny is"),
    "lora_bias with DoRA": (
        setting(lora_bias=True, use_dora=True),
        UnsupportedError,
        "lora_bias must be false if use_dora is true",
    ),
    "DoRA without magnitudes": (setting(use_dora=True), WeightError, "q_proj has no magnitude"),
    "a magnitude without DoRA": (
        tensor(f"base_model.model.{Q}.lora_magnitude_vector", 32),
        WeightError,
        "q_proj has a tensor 'magnitude', which",
    ),
    "a bias without leave": (
        tensor(f"base_model.model.{Q}.base_layer.bias", 32),
        WeightError,
        "q_proj has a tensor 'bias', which",
    ),
    "a bias of B without leave": (
        tensor(f"base_model.model.{Q}.lora_B.bias", 32),
        WeightError,
        "q_proj has a tensor 'up_bias', which",
    ),
    "a weight without leave": (
        tensor(f"base_model.model.{HEAD}.weight", 100, 48),
        WeightError,
        "lm_head has a tensor 'weight', which",
    ),
    "a saved module that is not there": (
        setting(modules_to_save=["lm_head"]),
        WeightError,
        "modules_to_save names 'lm_head', for which",
    ),
    "a target that is not there": (
        setting(target_modules=["q_proj", "v_proj", "o_proj"]),
        WeightError,
        "target_modules names 'o_proj', for which",
    ),
    "a module that is no target": (
        setting(target_modules=["v_proj"]),
        WeightError,
        "q_proj is adapted, but not one of target_modules",
    ),
    "targets that are numbers": (setting(target_modules=[1]), FormatError, "target_modules must be a list of texts"),
    "a layer that is none": (
        setting(layers_to_transform=[1]),
        WeightError,
        "layers.0.* not one of layers_to_transform",
    ),
    "layers in words": (setting(layers_to_transform=["0"]), FormatError, "layers_to_transform must be"),
    "A without B": (lambda c, t: t.pop(B), WeightError, "q_proj has no up"),
    "B without A": (lambda c, t: t.pop(A), WeightError, "q_proj has no down"),
    "ranks that differ": (tensor(B, 32, 5), WeightError, "different ranks"),
    "another rank than r": (both(tensor(A, 5, 48), tensor(B, 32, 5)), WeightError, "q_proj has rank 5, .* says 4"),
    "three dimensions": (tensor(A, 4, 48, 1), WeightError, r"has shape \(4, 48, 1\), expected 2 dimensions"),
    "no elements": (tensor(A, 0, 48), WeightError, r"has shape \(0, 48\)"),
    "integers": (lambda c, t: t.update({A: np.ones((4, 48), np.int32)}), UnsupportedError, "stored as i32"),
    "doubles": (lambda c, t: t.update({A: np.ones((4, 48))}), UnsupportedError, "stored as f64"),
    "a tensor of no module": (
        tensor("base_model.model.lora_A.weight", 4, 48),
        WeightError,
        "lora_A has a tensor 'weight'",
    ),
    "a tensor of no model": (tensor(f"{Q}.lora_A.weight", 4, 48), WeightError, "not part of an adapter"),
    "a tensor of another kind": (
        tensor(f"base_model.model.{Q}.hada_w1_a", 4, 48),
        WeightError,
        "not part of an adapter",
    ),
    "half of an embedding": (
        tensor("base_model.model.model.embed_tokens.lora_embedding_A", 4, 100),
        WeightError,
        "embed_tokens has no up",
    ),
    "a base alone": (
        tensor(f"base_model.model.{HEAD}.base_layer.weight", 100, 48),
        WeightError,
        "lm_head has no down, up",
    ),
    "weights tied while training": (
        setting(ensure_weight_tying=True),
        UnsupportedError,
        "ensure_weight_tying is unknown .*: got True",
    ),
    "two biases": (
        both(
            setting(bias="all"),
            tensor(f"base_model.model.{Q}.bias", 32),
            tensor(f"base_model.model.{Q}.base_layer.bias", 32),
        ),
        WeightError,
        "occurs twice",
    ),
    "adapted and replaced": (
        both(setting(modules_to_save=["q_proj"]), tensor(f"base_model.model.{Q}.weight", 32, 48)),
        WeightError,
        "both adapted and replaced",
    ),
    "a name without end": (
        tensor(f"base_model.model.{'x.' * 300}y.lora_A.weight", 4, 48),
        WeightError,
        "not part of an adapter",
    ),
}


@pytest.mark.parametrize("name", BAD_PEFT)
def test_a_bad_peft_folder_is_refused_by_name(tmp_path: Path, name: str) -> None:
    edit, kind, message = BAD_PEFT[name]
    config, tensors = json.loads(json.dumps({**DEFAULTS, **PEFT})), peft_tensors()
    edit(config, tensors)
    with pytest.raises(kind, match=message):
        open_adapter(write(tmp_path, config, tensors))


BAD_MLX: dict[str, tuple[Edit, type[WeftError], str]] = {
    "all weights": (
        setting(fine_tune_type="full"),
        UnsupportedError,
        "fine_tune_type must be lora or dora: got 'full'",
    ),
    "no parameters": (setting(lora_parameters={}), FormatError, "lora_parameters.rank must be .*: got None"),
    "no scale": (setting(lora_parameters={"rank": 4}), FormatError, "lora_parameters.scale must be .*: got None"),
    "an alpha": (
        setting(lora_parameters={"rank": 4, "scale": 1.0, "alpha": 16}),
        UnsupportedError,
        "lora_parameters.alpha is unknown .*: got 16",
    ),
    "parameters that are a list": (setting(lora_parameters=[4]), FormatError, "lora_parameters must be an object"),
    "another rank": (setting(lora_parameters={"rank": 8, "scale": 1.0}), WeightError, "has rank 4, .* says 8"),
    "other keys": (
        setting(lora_parameters={"rank": 4, "scale": 1.0, "keys": ["mlp.up"]}),
        WeightError,
        "lora_parameters.keys",
    ),
    "something new": (setting(shiny=3), UnsupportedError, "shiny is unknown .*: got 3"),
    "a whole weight": (tensor("model.norm.weight", 48), WeightError, "model.norm.weight' is not part of an adapter"),
    "a magnitude without DoRA": (tensor(f"{Q}.m", 32), WeightError, "q_proj has a tensor 'magnitude'"),
    "DoRA without magnitudes": (setting(fine_tune_type="dora"), WeightError, "q_proj has no magnitude"),
    "experts": (tensor(f"{Q}.lora_a", 3, 48, 4), WeightError, "expected 2 dimensions"),
}


@pytest.mark.parametrize("name", BAD_MLX)
def test_a_bad_mlx_folder_is_refused_by_name(tmp_path: Path, name: str) -> None:
    edit, kind, message = BAD_MLX[name]
    config, tensors = json.loads(json.dumps(MLX)), mlx_tensors()
    edit(config, tensors)
    with pytest.raises(kind, match=message):
        open_adapter(write(tmp_path, config, tensors, "adapters.safetensors"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("{", "malformed JSON"),
        ("[]", "not an object"),
        ('{"r": 4}', "neither PEFT's"),
        ('{"peft_type": "LORA", "r": NaN}', "malformed JSON"),
        ('{"peft_type": "LORA", "r": 4, "r": 8}', "given twice"),
        (" " * ((1 << 20) + 1), "too large"),
    ],
)
def test_a_malformed_config_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        open_adapter(write(tmp_path, text, peft_tensors()))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such folder"):
        open_adapter(tmp_path / "nothing")
    with pytest.raises(NotFoundError, match=r"adapter_config\.json"):
        open_adapter(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps(PEFT))
    with pytest.raises(NotFoundError, match=r"no adapter_model\.safetensors"):
        open_adapter(tmp_path)
    write(tmp_path, PEFT, {})
    with pytest.raises(WeightError, match="no tensors"):
        open_adapter(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\x80\x02.")
    with pytest.raises(FormatError, match=r"adapter_model\.safetensors"):
        open_adapter(tmp_path)


def test_a_pickle_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(PEFT))
    (tmp_path / "adapter_model.bin").write_bytes(b"\x80\x02.")
    with pytest.raises(UnsupportedError, match=r"adapter_model\.bin may hold pickled code"):
        open_adapter(tmp_path)


def test_long_lists_take_no_long_time(tmp_path: Path) -> None:
    """Names are looked up, not compared one by one: 20,000 targets and as many modules."""
    count = 20_000
    tensors = {}
    for i in range(count):
        tensors[f"base_model.model.m{i}.lora_A.weight"] = np.ones((1, 1), np.float16)
        tensors[f"base_model.model.m{i}.lora_B.weight"] = np.ones((1, 1), np.float16)
    config = {**PEFT, "r": 1, "target_modules": [f"m{i}" for i in range(count)]}
    config["alpha_pattern"] = {f"m{i}": 1 for i in range(count)}
    assert len(open_adapter(write(tmp_path, config, tensors)).modules) == count


@pytest.mark.soak
def test_broken_files_end_in_errors_of_weft(tmp_path: Path) -> None:
    """Bytes of either file changed, cut and doubled: it is read, or refused on purpose."""
    folder = write(tmp_path, {**DEFAULTS, **PEFT, "alpha_pattern": {"q_proj": 3}}, peft_tensors())
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    rng = np.random.default_rng(17)
    refused: list[str] = []
    count = times(4_000, 100)
    for number in range(count):
        for name, data in whole.items():
            (folder / name).write_bytes(data)
        name = ("adapter_config.json", "adapter_model.safetensors")[number % 2]
        data = bytearray(whole[name])
        reach = len(data) if number % 2 == 0 else 700  # the header
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(0, min(reach, len(data))))
            kind = rng.integers(0, 4)
            if kind == 0:
                data[at] = int(rng.integers(0, 256))
            elif kind == 1:
                del data[at : at + int(rng.integers(1, 40))]
            elif kind == 2:
                data[at:at] = data[at : at + int(rng.integers(1, 40))]
            else:
                data[at : at + 1] = bytes(rng.choice([b"9" * 30, b"-1", b"null", b"[]", b'"', b"1e999", b"true"]))
        (folder / name).write_bytes(data)
        try:
            open_adapter(folder)
        except WeftError as error:
            refused.append(str(error))
    assert len(refused) > 0.5 * count and all(message.startswith("[") for message in refused)
