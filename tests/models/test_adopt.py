"""Types that weft has no file for: `adopt` drafts a description that gives transformers' numbers, or names why not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_adopted

from weft.describe import adopt
from weft.errors import FormatError, InputError, ModelError, UnsupportedError
from weft.models import find_module
from weft.runtime import Decoder, Encoder, Head, open_checkpoint

MADE = tiny_adopted.made()
KINDS = {name: model["config"]["model_type"] for name, model in MADE.items()}
# A type that has got a file since then is no longer adopted.
GOLDEN = dict(np.load(tiny_adopted.GOLDEN / "adopted.npz"))
WANTED = {name: values for name, values in GOLDEN.items() if find_module(KINDS[name]) is None}
LIMIT = 2e-4
IDS = tiny.token_ids({"vocab_size": 59}, tiny_adopted.LENGTH)
ROWS = [row for row in tiny.KEPT if row < tiny_adopted.LENGTH]


def computed(folder: Path, words: Any, **options: Any) -> np.ndarray:
    (folder / "weft.json").write_text(json.dumps(dict(words)))
    checkpoint = open_checkpoint(folder)
    if words["kind"] == "decoder":
        return Decoder(checkpoint).logits(IDS, **options)
    return Encoder(checkpoint, Head("mean")).hidden_states(IDS.tolist())


def folder_of(place: Path, name: str, **changes: Any) -> Path:
    """The tiny model with some keys of its config changed; None removes one."""
    model = MADE[name]
    config = {key: value for key, value in {**model["config"], **changes}.items() if value is not None}
    return tiny.write_folder(place / "model", config, tiny_adopted.weights(model["shapes"]))


def test_three_types_and_more_are_adopted() -> None:
    assert len({KINDS[name] for name in WANTED}) >= 3


@pytest.mark.parametrize("name", WANTED)
def test_an_adopted_model_gives_transformers_numbers(tmp_path: Path, name: str) -> None:
    folder = tiny_adopted.write(tmp_path / name, name)
    found = adopt(folder)
    assert found.fits and found.description is not None
    assert (found.obstacles, found.unknown, found.missing, found.unmatched, found.assumed) == ((), (), (), (), ())
    values = computed(folder, found.description)
    assert np.abs(values[ROWS] - WANTED[name]).max() <= LIMIT
    if found.description["kind"] == "decoder":
        assert np.array_equal(values, computed(folder, found.description, chunk=16))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("deepseek_v3", "kv_lora_rank 16: multi-head latent attention"),
        ("deepseek_v3", "n_routed_experts 4: a mixture of experts"),
        ("mamba", "state_size 16: a state space in place of attention"),
        ("t5", "is_encoder_decoder True: an encoder with a decoder, which attends to it"),
        ("deberta-v2", "relative_attention True: scores that depend on relative positions"),
        ("bloom", "model_type bloom: ALiBi: its scores are biased by distance"),
        ("falcon-alibi", "alibi True: ALiBi: its scores are biased by distance"),
        ("apertus", "the activation xielu: a description has silu, gelu, gelu_tanh, quick_gelu, relu, relu2"),
        ("cohere-qk-norm", "model.layers.{i}.self_attn.q_norm has shape (6, 8): each head has its own norm"),
        ("codegen", "model_type codegen: its fused queries, keys and values lie in four blocks, in the order q, v, k"),
    ],
)
def test_what_a_description_cannot_express_is_named(tmp_path: Path, name: str, words: str) -> None:
    found = adopt(tiny_adopted.write(tmp_path / name, name))
    assert words in found.obstacles and found.description is None and not found.fits


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_experts": 8}, "num_experts 8: a mixture of experts"),
        (
            {"position_embedding_type": "alibi"},
            "position_embedding_type alibi: ALiBi: its scores are biased by distance",
        ),
        ({"quantization_config": {"bits": 4}}, "quantization_config: quantised weights"),
        ({"text_config": {"hidden_size": 3}}, "text_config: a model of several parts"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layers of type linear_attention"),
        ({"clip_qkv": 8.0}, "clip_qkv 8.0: queries, keys and values that are cut off at a value"),
    ],
)
def test_a_key_that_is_an_obstacle_is_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    assert adopt(folder_of(tmp_path, "stablelm", **changes)).obstacles == (words,)


def test_what_does_not_fit_the_file_is_listed(tmp_path: Path) -> None:
    found = adopt(tiny_adopted.write(tmp_path / "narrow", "electra-narrow"))
    assert found.description is not None and not found.fits
    assert set(found.unmatched) == {"embeddings_project.weight", "embeddings_project.bias"}
    assert "embeddings.LayerNorm.weight has shape (16,), the model wants (48,) by its weft.json" in found.missing


def test_a_tensor_of_no_known_part_is_listed_with_the_part_that_is_missing(tmp_path: Path) -> None:
    tensors = tiny_adopted.weights(MADE["stablelm"]["shapes"])
    renamed = {name.replace("self_attn.q_proj", "self_attn.asker"): value for name, value in tensors.items()}
    found = adopt(tiny.write_folder(tmp_path / "odd", MADE["stablelm"]["config"], renamed))
    assert len(found.missing) == 1 and "weights.q is missing" in found.missing[0]
    assert set(found.unmatched) == {
        f"model.layers.{i}.self_attn.asker.{ending}" for i in range(2) for ending in ("weight", "bias")
    }


def test_a_key_that_is_not_known_is_listed_with_its_value(tmp_path: Path) -> None:
    found = adopt(folder_of(tmp_path, "stablelm", attention_sharpness=3))
    assert found.fits and found.unknown == ("attention_sharpness 3",)


def test_a_type_that_nobody_knows_is_drafted_with_assumptions(tmp_path: Path) -> None:
    """A relative of llama under a name of its own gives llama's bits."""
    cfg = {**tiny.LLAMA, "model_type": "somebodys_llama"}
    folder = tiny.write_folder(tmp_path / "own", cfg, tiny.weights(tiny.LLAMA))
    found = adopt(folder)
    assert found.fits and found.description is not None and found.assumed == ("channels rotate in halves",)
    ids = tiny.token_ids(cfg, 40)
    (folder / "weft.json").write_text(json.dumps(dict(found.description)))
    llama = tiny.write_folder(tmp_path / "llama", tiny.LLAMA)
    assert np.array_equal(*(Decoder(open_checkpoint(path)).logits(ids) for path in (folder, llama)))


def test_every_fact_that_no_file_states_is_an_assumption(tmp_path: Path) -> None:
    found = adopt(folder_of(tmp_path, "persimmon", model_type="somebodys", sliding_window=9, rope_parameters=None))
    assert found.fits and found.assumed == (
        "the rows of model.layers.{i}.self_attn.query_key_value are queries, keys and values one after another",
        "queries and keys are normed before they rotate",
        "every layer has the window of 9 tokens",
        "rotary positions with a theta of 10,000: the config has none, and the file has no table",
        "channels rotate in halves",
    )


@pytest.mark.parametrize(
    "name",
    [
        "qwen2",
        "qwen3",
        "mistral",
        "gemma2-listed-bias",
        "gemma3_text",
        "olmo2",
        "phi3",
        "granite",
        "bert",
        "distilbert",
    ],
)
def test_a_draft_of_a_known_type_is_the_description_that_its_file_makes(tmp_path: Path, name: str) -> None:
    """The rules that drafts follow, beside weft's own files: what config.json and tensors show is drafted alike."""
    from weft.describe import description_of
    from weft.describe.draft import draft_of

    cfg = tiny.CONFIGS[name]
    checkpoint = open_checkpoint(tiny.write_folder(tmp_path / name, cfg))
    own = description_of(checkpoint).as_json()
    draft = draft_of(checkpoint.config, {key: value.view.shape for key, value in checkpoint.tensors.items()})
    assert not draft.obstacles
    for part in ("kind", "vocab_size", "hidden_size", "layers", "pattern", "mlp", "weights"):
        assert draft.description[part] == own[part], part
    for part in ("heads", "kv_heads", "head_dim", "causal", "bias", "out_bias", "qk_norm", "qkv", "cap"):
        assert draft.description["attention"][part] == own["attention"][part], part
    assert draft.description["block"]["placement"] == own["block"]["placement"]
    assert draft.description["norm"]["type"] == own["norm"]["type"]


def test_the_names_of_gpt2_s_own_files_are_found(tmp_path: Path) -> None:
    """They lack the prefix, and hold the masks that older versions kept; the config lacks what newer ones add."""
    model = MADE["gpt2"]
    tensors = {
        name.removeprefix("transformer."): value for name, value in tiny_adopted.weights(model["shapes"]).items()
    }
    masks = {f"h.{i}.attn.bias": np.ones((1, 1, 160, 160), np.float32) for i in range(2)}
    kept = (
        "n_embd",
        "n_head",
        "n_layer",
        "n_positions",
        "vocab_size",
        "activation_function",
        "model_type",
        "architectures",
    )
    config = {key: model["config"][key] for key in (*kept, "layer_norm_epsilon")}
    folder = tiny.write_folder(tmp_path / "gpt2", {**config, "n_ctx": 160}, {**tensors, **masks})
    found = adopt(folder)
    assert found.fits and found.description is not None and not found.unknown
    assert found.description["output"]["tied"] and found.description["transposed"]
    assert np.abs(computed(folder, found.description)[ROWS] - WANTED["gpt2"]).max() <= LIMIT


def test_an_encoder_with_the_head_of_its_training_fits(tmp_path: Path) -> None:
    model = MADE["camembert"]
    tensors = {f"roberta.{name}": value for name, value in tiny_adopted.weights(model["shapes"]).items()}
    tensors |= {"lm_head.dense.weight": np.zeros((48, 48), np.float32), "lm_head.bias": np.zeros(59, np.float32)}
    config = {**model["config"], "architectures": ["CamembertForMaskedLM"]}
    folder = tiny.write_folder(tmp_path / "inside", config, tensors)
    found = adopt(folder)
    assert found.fits and found.description is not None
    assert found.assumed == ("heads of training and classifiers are left out: lm_head.bias, lm_head.dense.weight",)
    assert found.description["weights"]["q"] == "roberta.encoder.layer.{i}.attention.self.query"
    assert np.abs(computed(folder, found.description)[ROWS] - WANTED["camembert"]).max() <= LIMIT


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers", "is missing; it may be called num_hidden_layers, n_layer"),
        ({"hidden_size": "wide"}, "hidden_size", "has a value of an unexpected type"),
        ({"num_attention_heads": 0}, "num_attention_heads", "must be 1 to 1024: got 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers", "must be 1 to 1024"),
        ({"vocab_size": True}, "vocab_size", "has a value of an unexpected type"),
    ],
)
def test_a_config_without_usable_sizes_is_refused(
    tmp_path: Path, changes: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(FormatError, match=words) as caught:
        adopt(folder_of(tmp_path, "stablelm", **changes))
    assert caught.value.field == field


def test_a_model_that_needs_no_draft_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"weft has a file for models of type llama; .*weft show --config"):
        adopt(tiny.write_folder(tmp_path / "llama", tiny.LLAMA))
    folder = tiny_adopted.write(tmp_path / "phi", "phi")
    computed(folder, adopt(folder).description)
    with pytest.raises(InputError, match=r"has a weft.json already"):
        adopt(folder)


def test_a_gguf_file_is_not_adopted(tmp_path: Path) -> None:
    from test_gguf_models import BLOCKED, write_model

    with pytest.raises((InputError, UnsupportedError)):
        adopt(write_model(tmp_path / "llama.gguf", BLOCKED, "q4_1"))


ODD: tuple[Any, ...] = (None, True, -1, 0, 10**30, 0.5, "x", [{}], {"full_attention": {}})


@pytest.mark.parametrize("name", ["cohere2", "gpt2", "camembert"])
def test_odd_values_in_a_config_are_drafted_or_refused(name: str) -> None:
    """With one key changed a draft is made, has obstacles, or is weft's error that names the key."""
    from weft.describe.draft import draft_of

    config, shapes = MADE[name]["config"], {key: tuple(shape) for key, shape in MADE[name]["shapes"].items()}
    more = ("layer_types", "rope_scaling", "sliding_window", "rope_local_base_freq", "query_pre_attn_scalar")
    refused = []
    for key in (*config, *more):
        for odd in ODD:
            try:
                draft_of({**config, key: odd}, shapes)
            except ModelError as error:
                refused.append(error.field)
    assert refused and all(refused)
