"""A model that is built from its description gives the bits of the model's own file; a wrong description is refused."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_adapters

from weft.backends.cpu import CpuBackend
from weft.describe import description_of
from weft.errors import ModelError, UnsupportedError
from weft.models import model_module
from weft.nn import read_config
from weft.nn.description import read_description
from weft.runtime import Checkpoint, Decoder, Encoder, Head, open_checkpoint
from weft.runtime.programs import Programs
from weft.weights import write_safetensors

FITS = [name for name, cfg in tiny.CONFIGS.items() if hasattr(model_module(cfg["model_type"]), "describe")]
CONTEXT = 256


def described(folder: Path, words: dict[str, Any]) -> Path:
    (folder / "weft.json").write_text(json.dumps(words))
    return folder


def computed(checkpoint: Checkpoint, ids: np.ndarray, decodes: bool) -> np.ndarray:
    if decodes:
        return Decoder(checkpoint, context=CONTEXT).logits(ids)
    return Encoder(checkpoint, Head("mean")).hidden_states(ids)


def test_the_types_that_the_issue_names_fit() -> None:
    wanted = {
        "llama",
        "qwen2",
        "qwen3",
        "mistral",
        "gemma2",
        "gemma3_text",
        "olmo2",
        "olmo3",
        "granite",
        "glm4",
        "phi3",
    }
    wanted |= {"ernie4_5", "smollm3", "bert", "roberta", "xlm-roberta", "distilbert", "nomic_bert", "eurobert"}
    assert wanted | {"modernbert"} <= {tiny.CONFIGS[name]["model_type"] for name in FITS}


@pytest.mark.parametrize("name", FITS)
def test_a_description_gives_the_bits_of_the_model_s_own_file(tmp_path: Path, name: str) -> None:
    cfg = tiny.CONFIGS[name]
    folder = tiny.write_folder(tmp_path / "tiny", cfg)
    own = open_checkpoint(folder)
    words = description_of(own).as_json()
    assert words["made_from"] == cfg["model_type"]
    ids = tiny.token_ids(cfg, 130)
    want = computed(own, ids, tiny.decodes(cfg))
    generic = open_checkpoint(described(folder, json.loads(json.dumps(words))))
    assert generic.model_type == ("generic" if words["kind"] == "decoder" else "generic_encoder")
    assert np.array_equal(want, computed(generic, ids, tiny.decodes(cfg)))
    assert description_of(generic).as_json() == words


@pytest.mark.parametrize("name", ["qwen3", "llama-llama3-rope", "gemma3_text"])
def test_a_described_decoder_embeds_with_the_same_bits(tmp_path: Path, name: str) -> None:
    cfg = tiny.CONFIGS[name]
    folder, head = tiny.write_folder(tmp_path / "tiny", cfg), Head("last", normalise=True)
    texts = [tiny.token_ids(cfg, 40), tiny.token_ids(cfg, 7, seed=8)]
    own = open_checkpoint(folder)
    want = Encoder(own, head).vectors(texts)
    generic = open_checkpoint(described(folder, description_of(own).as_json()))
    assert np.array_equal(want, Encoder(generic, head).vectors(texts))


@pytest.mark.parametrize(
    ("name", "prefix"), [("bert", "bert."), ("roberta", "model.roberta."), ("nomic_bert", "nomic_bert.")]
)
def test_a_description_has_the_names_of_the_file(tmp_path: Path, name: str, prefix: str) -> None:
    cfg = tiny.CONFIGS[name]
    ids = tiny.token_ids(cfg, 40)
    stored = {f"{prefix}{key}": value for key, value in tiny.weights(cfg).items()}
    folder = tiny.write_folder(tmp_path / "inside", cfg, stored)
    own = open_checkpoint(folder)
    words = description_of(own).as_json()
    assert all(value.startswith(prefix) for value in words["weights"].values())
    want = computed(own, ids, decodes=False)
    assert np.array_equal(want, computed(open_checkpoint(described(folder, words)), ids, decodes=False))


def test_the_first_checkpoints_of_nomic_bert_have_a_description_too(tmp_path: Path) -> None:
    ids = tiny.token_ids(tiny.NOMIC_BERT, 40)
    folder = tiny.write_folder(tmp_path / "first", *tiny.first_nomic(tiny.NOMIC_BERT))
    own = open_checkpoint(folder)
    words = description_of(own).as_json()
    assert words["attention"]["qkv"] == "stacked"
    want = computed(own, ids, decodes=False)
    assert np.array_equal(want, computed(open_checkpoint(described(folder, words)), ids, decodes=False))


def test_a_decoder_saved_without_its_head_has_its_own_names(tmp_path: Path) -> None:
    cfg = {**tiny.QWEN3, "tie_word_embeddings": True}
    stored = {key.removeprefix("model."): value for key, value in tiny.weights(cfg).items()}
    folder = tiny.write_folder(tmp_path / "trunk", cfg, stored)
    own = open_checkpoint(folder)
    words = description_of(own).as_json()
    assert words["weights"]["q"] == "layers.{i}.self_attn.q_proj"
    ids = tiny.token_ids(cfg, 40)
    want = computed(own, ids, decodes=True)
    assert np.array_equal(want, computed(open_checkpoint(described(folder, words)), ids, decodes=True))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lfm2", "its program has the ops causal_conv$"),
        ("qwen3_5_text", "its program has the ops causal_conv, delta_rule$"),
        ("mixtral", "its program has the ops combine, group, route$"),
        ("mpnet", "its attention scores have biases by distance$"),
    ],
)
def test_a_type_that_does_not_fit_names_the_obstacle(tmp_path: Path, name: str, words: str) -> None:
    folder = tiny.write_folder(tmp_path / name, tiny.CONFIGS[name])
    with pytest.raises(UnsupportedError, match=f"a {name} does not fit a description: {words}"):
        description_of(open_checkpoint(folder))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a tiny llama with its description, changed at dotted paths; None removes a field."""
    folder = tiny.write_folder(tmp_path_factory.mktemp("generic") / "llama", tiny.LLAMA)
    plain = json.dumps(description_of(open_checkpoint(folder)).as_json())

    def changed(changes: dict[str, Any]) -> Path:
        words = json.loads(plain)
        for path, value in changes.items():
            *inner, last = path.split("/")
            place = words
            for key in inner:
                place = place[key]
            if value is None:
                del place[last]
            else:
                place[last] = value
        return described(folder, words)

    return changed


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"version": 2}, "version", "must be 1"),
        ({"version": None}, "version", "is missing"),
        ({"kind": "diffusion"}, "kind", "must be one of decoder, encoder"),
        ({"kind": "encoder"}, "output", "is only for a decoder"),
        ({"output": None}, "output", "is missing: a decoder makes logits"),
        ({"colour": 1}, "colour", "is not a field of a description: got 1; known here: version, kind"),
        ({"vocab_size": "many"}, "vocab_size", "must be of type int"),
        ({"layers": 0}, "layers", "must be 1 to 1024"),
        ({"positions": 10**9}, "positions", "must be 1 to 16777216"),
        ({"attention": []}, "attention", "must be an object"),
        ({"attention/heads": None}, "attention.heads", "is missing"),
        ({"attention/heads": 5}, "attention.heads", r"must be a multiple of kv_heads \(2\): got 5"),
        ({"attention/heads": 2000}, "attention.heads", "must be 1 to 1024"),
        ({"attention/alibi": True}, "attention.alibi", "is not a field of a description"),
        ({"attention/qk_norm": "rows"}, "attention.qk_norm", "must be one of none, head, all"),
        ({"attention/scale": -1.0}, "attention.scale", "must be above zero"),
        ({"norm/type": "batch"}, "norm.type", "must be one of rms, layer"),
        ({"norm/bias": True}, "norm.bias", "is only for a layer norm with a weight"),
        ({"norm/eps": 0.0}, "norm.eps", "must be above zero"),
        (
            {"mlp/activation": "xielu"},
            "mlp.activation",
            "must be one of silu, gelu, gelu_tanh, quick_gelu, relu, relu2",
        ),
        ({"mlp/activation": "relu2"}, "mlp.activation", "cannot be relu2 where gated is true"),
        ({"block/placement": "around"}, "block.placement", "must be one of pre, post, output, sandwich, parallel"),
        ({"block/placement": "post"}, "weights.attention_out_norm", "is missing: the description has this part"),
        ({"block/first_norm": False, "block/placement": "sandwich"}, "block.first_norm", "only with placement pre"),
        ({"embedding/positions": "rotary"}, "embedding.positions", "must be one of none, learned"),
        ({"embedding/first_position": -1}, "embedding.first_position", "must be 0 to 65536"),
        ({"ropes/main/dim": 7}, "ropes.main.dim", "must be even"),
        ({"ropes/main/dim": 64}, "ropes.main.dim", r"must be at most head_dim \(8\)"),
        ({"ropes/main/pairs": "all"}, "ropes.main.pairs", "must be one of halves, neighbours"),
        ({"ropes/main/theta": 0.5}, "ropes.main.theta", "must be a number of at least 1"),
        ({"ropes/main/scaling": {"rope_type": "linear"}}, "ropes.main.scaling.factor", "must be a number above zero"),
        ({"ropes/main/scaling": {"rope_type": "odd"}}, "ropes.main.scaling.rope_type", "weft knows default, linear"),
        ({"layer_types/full/rope": "other"}, "layer_types.full.rope", r"must be null or one of ropes \(main\)"),
        ({"layer_types/full/window": -2}, "layer_types.full.window", "must be 0 to"),
        ({"layer_types": {}}, "layer_types", "must have at least one"),
        ({"pattern": ["full", "half"]}, "pattern", r"names of layer_types \(full\): got 'half'"),
        ({"pattern": []}, "pattern", "must have 1 to 2 names"),
        ({"pattern": "full"}, "pattern", "must be of type list"),
        ({"weights/q": 3}, "weights.q", "must be of type str"),
        ({"weights/q": "model.q"}, "weights.q", r"with \{i\} once"),
        ({"weights/head": "lm_head.{i}"}, "weights.head", r"without \{i\}"),
        ({"weights/q": "a/../{i}"}, "weights.q", "must be a tensor's name"),
        ({"weights/gate_up": "x.{i}"}, "weights.gate_up", "is not a part of this model: .*it has embedding"),
        ({"weights/q": None}, "weights.q", "is missing: the description has this part"),
        ({"output/bias": True, "output/tied": True}, "output.bias", "is only for a head that is not tied"),
    ],
)
def test_a_wrong_description_is_refused_by_its_field(
    llama: Callable[..., Path], changes: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        _ = Programs(open_checkpoint(llama(changes)), CpuBackend(), compute="f32").config
    assert caught.value.field == field and caught.value.where == "weft.json"


def test_a_tensor_that_the_description_names_and_the_file_lacks_is_named(llama: Callable[..., Path]) -> None:
    changed = llama({"weights/up": "model.layers.{i}.mlp.upper"})
    with pytest.raises(ModelError, match=r"model.layers.0.mlp.upper.weight is missing; .* by its weft.json"):
        Decoder(open_checkpoint(changed))


def test_a_folder_needs_no_config_beside_a_description(llama: Callable[..., Path], tmp_path: Path) -> None:
    source, ids = llama({}), tiny.token_ids(tiny.LLAMA, 40)
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("weft.json", "model.safetensors"):
        (folder / name).write_bytes((source / name).read_bytes())
    assert np.array_equal(computed(open_checkpoint(folder), ids, True), computed(open_checkpoint(source), ids, True))


@pytest.mark.parametrize("text", ["[]", "{", '{"version": 1, "version": 1}'])
def test_a_malformed_file_is_refused_by_name(llama: Callable[..., Path], text: str) -> None:
    folder = llama({})
    (folder / "weft.json").write_text(text)
    with pytest.raises(ModelError, match=r"\[weft.json\]"):
        open_checkpoint(folder)


def test_a_config_that_says_generic_needs_a_description(tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path / "bare", {**tiny.LLAMA, "model_type": "generic"}, tiny.weights(tiny.LLAMA))
    with pytest.raises(ModelError, match="is missing") as caught:
        Decoder(open_checkpoint(folder))
    assert caught.value.field == "description"


@pytest.mark.parametrize("case", ["llama-plain", "llama-dora", "llama-head-lora", "llama-embed"])
def test_an_adapter_changes_a_described_model_like_the_model_itself(tmp_path: Path, case: str) -> None:
    cfg = tiny.CONFIGS[tiny_adapters.CASES[case][0]]
    adapter, ids = tiny_adapters.write_case(tmp_path / "a", case), tiny.token_ids(cfg, 40)
    folder = tiny.write_folder(tmp_path / "base", cfg)
    own = Decoder(open_checkpoint(folder))
    want = own.logits(ids, adapter=own.adapters.load("a", adapter))
    assert not np.array_equal(want, own.logits(ids))
    generic = Decoder(open_checkpoint(described(folder, description_of(own.checkpoint).as_json())))
    assert np.array_equal(want, generic.logits(ids, adapter=generic.adapters.load("a", adapter)))


def test_gguf_refuses_a_described_model_by_name() -> None:
    from weft.models import gguf_declaration

    with pytest.raises(UnsupportedError, match="is not an architecture that weft runs: got 'generic'"):
        gguf_declaration("generic")


def fused_by_group(stored: dict[str, np.ndarray], words: dict[str, Any]) -> dict[str, np.ndarray]:
    """The tiny llama's tensors with the rows of each kv head's q, k and v together; `words` is changed with them."""
    dim, group = 8, 3
    made = dict(stored)
    for i in range(2):
        at = f"model.layers.{i}.self_attn."
        q, k, v = (made.pop(f"{at}{name}_proj.weight") for name in "qkv")
        rows = [
            (q[g * group * dim : (g + 1) * group * dim], k[g * dim : (g + 1) * dim], v[g * dim : (g + 1) * dim])
            for g in range(2)
        ]
        made[f"{at}qkv.weight"] = np.concatenate([part for parts in rows for part in parts])
    weights = {role: name for role, name in words["weights"].items() if role not in "qkv"}
    words["weights"] = {**weights, "qkv": "model.layers.{i}.self_attn.qkv"}
    words["attention"]["qkv"] = "by_group"
    return made


def test_matrices_stored_transposed_and_rows_fused_by_group_are_the_same_model(
    tmp_path: Path, llama: Callable[..., Path]
) -> None:
    """GPT-2 stores [inputs, outputs]; GPT-NeoX and Falcon keep the rows of each kv head together."""
    folder, ids = llama({}), tiny.token_ids(tiny.LLAMA, 40)
    want = computed(open_checkpoint(folder), ids, decodes=True)
    words = json.loads((folder / "weft.json").read_text())
    stored = tiny.weights(tiny.LLAMA)
    turned = {
        name: value.T.copy() if ".layers." in name and value.ndim == 2 else value for name, value in stored.items()
    }
    other = tiny.write_folder(tmp_path / "turned", tiny.LLAMA, turned)
    assert np.array_equal(want, computed(open_checkpoint(described(other, {**words, "transposed": True})), ids, True))
    fused = tiny.write_folder(tmp_path / "fused", tiny.LLAMA, fused_by_group(stored, words))
    assert np.array_equal(want, computed(open_checkpoint(described(fused, words)), ids, decodes=True))


def test_an_adapter_of_fused_and_transposed_matrices_is_that_of_changed_weights(
    tmp_path: Path, llama: Callable[..., Path]
) -> None:
    words = json.loads((llama({}) / "weft.json").read_text())
    stored = fused_by_group(tiny.weights(tiny.LLAMA), words)
    name = "model.layers.1.self_attn.qkv"
    down, up = tiny.uniform(5, 4 * 48).reshape(4, 48), tiny.uniform(6, 80 * 4).reshape(80, 4)
    settings = {**tiny_adapters.PEFT, "target_modules": ["qkv"]}
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    tensors = {f"base_model.model.{name}.lora_A.weight": down, f"base_model.model.{name}.lora_B.weight": up}
    write_safetensors(adapter / "adapter_model.safetensors", tensors)
    changed = {**stored, f"{name}.weight": stored[f"{name}.weight"] + np.float32(2.0) * (up @ down)}
    ids = tiny.token_ids(tiny.LLAMA, 40)
    merged = described(tiny.write_folder(tmp_path / "merged", tiny.LLAMA, changed), words)
    want = computed(open_checkpoint(merged), ids, decodes=True)
    turned = {key: value.T.copy() if ".layers." in key and value.ndim == 2 else value for key, value in stored.items()}
    for kind, tensors in (("plain", stored), ("turned", turned)):
        folder = tiny.write_folder(tmp_path / kind, tiny.LLAMA, tensors)
        decoder = Decoder(open_checkpoint(described(folder, {**words, "transposed": kind == "turned"})))
        logits = decoder.logits(ids, adapter=decoder.adapters.load("a", adapter))
        assert np.abs(logits - want).max() < 2e-4


def test_a_description_is_read_as_it_was_written(llama: Callable[..., Path]) -> None:
    words = json.loads((llama({}) / "weft.json").read_text())
    assert read_description(words).as_json() == words


ODD: tuple[Any, ...] = (None, True, -1, 10**30, 0.5, "x", [[]], {"a": {}})


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value, objects and lists included."""
    yield path
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from leaves(value, (*path, key))


def test_odd_values_anywhere_are_read_or_refused(tmp_path: Path) -> None:
    """With one value replaced, a description is a config, or weft's error that names the field."""
    folder = tiny.write_folder(tmp_path / "tiny", tiny.CONFIGS["phi3-part-longrope"])
    plain = json.dumps(description_of(open_checkpoint(folder)).as_json())
    refused = []
    for path in leaves(json.loads(plain)):
        for odd in ODD:
            words = {"": json.loads(plain)}
            place: Any = words
            for key in ("", *path)[:-1]:
                place = place[key]
            place[("", *path)[-1]] = odd
            try:
                read_config(model_module("generic").Config, {"description": words[""]})
            except ModelError as error:
                refused.append(error.field)
    assert len(refused) > 200 and all(refused)


def test_sinks_take_part_of_the_attention(tmp_path: Path, llama: Callable[..., Path]) -> None:
    """A sink far below every score changes nothing; one above them takes all, and leaves the residual stream."""
    words = json.loads((llama({}) / "weft.json").read_text())
    plain = computed(open_checkpoint(llama({})), (ids := tiny.token_ids(tiny.LLAMA, 40)), decodes=True)
    words["attention"]["sinks"] = True
    words["weights"]["sinks"] = "model.layers.{i}.self_attn.sinks"
    found = []
    for value in (-1e4, 0.0, 1e4):
        sinks = {f"model.layers.{i}.self_attn.sinks": np.full(6, value, np.float32) for i in range(2)}
        folder = tiny.write_folder(tmp_path / str(value), tiny.LLAMA, {**tiny.weights(tiny.LLAMA), **sinks})
        decoder = Decoder(open_checkpoint(described(folder, words)))
        found.append(decoder.logits(ids))
        reference = Decoder(decoder.checkpoint, backend="reference").logits(ids)
        assert np.abs(reference - found[-1]).max() < 2e-4
    assert np.abs(found[0] - plain).max() < 1e-5 < np.abs(found[1] - plain).max()
    silent = tiny.weights(tiny.LLAMA)
    for i in range(2):
        silent[f"model.layers.{i}.self_attn.o_proj.weight"][:] = 0
    folder = tiny.write_folder(tmp_path / "silent", tiny.LLAMA, silent)
    assert np.abs(found[2] - computed(open_checkpoint(folder), ids, decodes=True)).max() < 1e-4
