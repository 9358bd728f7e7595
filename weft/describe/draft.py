"""A description drafted from a config.json and the names and shapes of the tensors beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from weft.describe.families import FAMILIES, IGNORED, OBSTACLES, SHOWN, Family, obstacles
from weft.describe.parts import Found, Shape, find_parts
from weft.describe.settings import Settings
from weft.frozen import frozen
from weft.nn import description as said

ACTIVATIONS = {
    **dict.fromkeys(("silu", "swish"), "silu"),
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_tanh"),
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
}
SLIDES = ("sliding_attention", "local")
TYPES = (*SLIDES, "full_attention", "global")
DECODERS = ("ForCausalLM", "LMHeadModel")


@frozen
class Draft:
    """`description` as JSON; `assumed`, `unknown` (keys of config.json) and `obstacles` are sentences for people."""

    description: Mapping[str, Any]
    assumed: tuple[str, ...]
    unknown: tuple[str, ...]
    obstacles: tuple[str, ...]


def draft_of(config: Mapping[str, Any], tensors: Mapping[str, Shape]) -> Draft:
    """The draft for a model with this config.json and these tensors; FormatError for a config without sizes."""
    kind = str(config.get("model_type"))
    settings = Settings(config, FAMILIES.get(kind, Family()).defaults)
    found = obstacles(config)
    if found:
        return Draft({}, (), (), tuple(found))
    made = _Drafting(kind, settings, find_parts(tensors, settings.count("layers")))
    words = made.words()
    if made.obstacles:
        return Draft({}, (), (), tuple(made.obstacles))
    known = settings.read | {key for key, *_ in OBSTACLES}
    unknown = [key for key in config if not (IGNORED.fullmatch(key) or SHOWN.fullmatch(key) or key in known)]
    shown = [f"{key} {config[key]!r}" for key in unknown]
    return Draft(words, tuple(made.assumed), tuple(shown), ())


class _Drafting:
    """One draft in the making: what is missing or assumed is gathered on the way."""

    def __init__(self, kind: str, settings: Settings, found: Found) -> None:
        self.family = FAMILIES.get(kind, Family())
        self.known = kind in FAMILIES
        self.kind, self.settings, self.found = kind, settings, found
        self.assumed: list[str] = []
        self.obstacles: list[str] = []
        self.names = dict(found.names)
        self.hidden, self.heads = settings.count("hidden_size"), settings.count("heads")
        self.layers = settings.count("layers")
        self.head_dim = settings.get("head_dim", int, self.hidden // self.heads)

    def assume(self, what: str) -> None:
        """Note a fact that neither the config nor the tensors show, unless the type is known."""
        if not self.known:
            self.assumed.append(what)

    def words(self) -> dict[str, Any]:
        decodes = self._decodes()
        placement = self._placement()
        positions, first = self._positions()
        made = {
            "version": said.VERSION,
            "made_from": self.kind,
            "kind": "decoder" if decodes else "encoder",
            "vocab_size": self.settings.count("vocab_size"),
            "hidden_size": self.hidden,
            "layers": self.layers,
            "positions": self._longest(first) if positions == "learned" else self.settings.count("positions"),
            "embedding": {
                "scale": self._embedding_scale(),
                "positions": positions,
                "first_position": first,
                "types": self.found.shapes["types"][0] if "types" in self.found else 0,
                "norm": "embedding_norm" in self.found,
            },
            "norm": self._norm(),
            "block": {
                "placement": placement,
                "residual_scale": self.settings.real("residual_multiplier") or 1.0,
                "final_norm": "final_norm" in self.found or ("attention_norm" not in self.names and placement == "pre"),
            },
            "attention": self._attention(decodes),
            "mlp": self._mlp(),
            **self._layer_types(positions),
            "transposed": self.family.transposed,
        }
        if decodes:
            made["output"] = self._output()
        wanted = [] if self.obstacles else self._wanted(made)
        return {**made, "weights": {part: self.names[part] for part in wanted if part in self.names}}

    def _decodes(self) -> bool:
        """Whether it generates: by its class, its family or its names."""
        classes = self.settings.get("architectures", list, [])
        if self.known:
            return not self.family.encodes
        if any(str(name).endswith(DECODERS) for name in classes):
            return True
        norms_after = "after_attention" in self.found and "before_attention" not in self.found  # as in BERT
        encodes = norms_after or any("ForMaskedLM" in str(name) for name in classes)
        self.assume(f"it is {'an encoder' if encodes else 'a decoder'}: architectures names no class that says so")
        return not encodes

    def _placement(self) -> str:
        """Where norms are, by which there are; the names of their parts become those of a description."""
        norms = ("before_attention", "after_attention", "between", "before_mlp", "after_mlp")
        there = {name: self.names.pop(name) for name in norms if name in self.names}
        kinds = set(there)
        post = self.settings.get("do_layer_norm_before", bool, True) is False
        beside = [self.settings.get(key, bool, False) for key in ("use_parallel_residual", "parallel_attn")]
        if not kinds:
            self.assume("norms have no parameters, and are before each part")
            return "pre"
        if kinds == {"before_attention"}:
            self.assume("attention and feed-forward part read the same norm: layers have only one")
            parts = {"attention_norm": "before_attention"}
            placement = "parallel_shared"
        elif kinds in ({"before_attention", "between"}, {"before_attention", "before_mlp"}):
            second = "between" if "between" in kinds else "before_mlp"
            ends = ("attention_out_norm", "mlp_out_norm") if post else ("attention_norm", "mlp_norm")
            parts = dict(zip(ends, ("before_attention", second)))
            separate = there["before_attention"].endswith("ln_attn")
            placement = "post" if post else "parallel" if any(beside) or separate else "pre"
        elif kinds == {"after_attention", "after_mlp"}:
            parts = {"attention_out_norm": "after_attention", "mlp_out_norm": "after_mlp"}
            placement = "post"
        elif kinds == {"between", "after_mlp"}:
            parts = {"attention_out_norm": "between", "mlp_out_norm": "after_mlp"}
            placement = "output"
        elif kinds in ({*norms} - {"after_attention"}, {*norms} - {"before_mlp"}):
            after = "between" if "before_mlp" in kinds else "after_attention"
            before = "before_mlp" if "before_mlp" in kinds else "between"
            parts = {"attention_norm": "before_attention", "attention_out_norm": after, "mlp_norm": before}
            parts["mlp_out_norm"] = "after_mlp"
            placement = "sandwich"
        else:
            self.obstacles.append(f"its norms are placed in no way that weft knows: {', '.join(there.values())}")
            return "pre"
        self.names.update({part: there[name] for part, name in parts.items()})
        return placement

    def _norm(self) -> dict[str, Any]:
        norms = [part for part in self.names if part.endswith("norm")]
        biased = any(part in self.found.biased for part in ("final_norm", "before_attention", "after_attention"))
        rms, layer = self.settings.real("rms_eps"), self.settings.real("layer_eps")
        either = self.settings.real("norm_eps")
        is_rms = not biased and (rms is not None or (either is not None and layer is None))
        if rms is None and not biased:
            self.assume(f"norms are {'RMS norms' if is_rms else 'layer norms without a bias'}")
        eps = self.family.eps or rms or layer or either
        if eps is None:
            self.assume("the eps of norms is 1e-5: the config does not say it")
            eps = 1e-5
        return {
            "type": "rms" if is_rms else "layer",
            "eps": eps,
            "plus_one": self.family.plus_one,
            "bias": biased,
            "weight": bool(norms),
        }

    def _attention(self, decodes: bool) -> dict[str, Any]:
        apart = "qkv" not in self.found
        if not apart:
            rule = "one after another" if self.family.qkv == "stacked" else "together for each key head"
            self.assume(f"the rows of {self.names['qkv']} are queries, keys and values {rule}")
        scale = self.settings.real("attention_multiplier") or self.family.score_scale
        if self.settings.get("scale_attn_weights", bool, True) is False:
            scale = 1.0
        scalar = self.settings.real("query_pre_attn_scalar")
        return {
            "heads": self.heads,
            "kv_heads": self._kv_heads(),
            "head_dim": self.head_dim,
            "causal": decodes,
            "scale": scalar**-0.5 if scalar else scale,
            "cap": self.settings.real("attn_logit_softcapping"),
            "bias": "q" in self.found.biased or "qkv" in self.found.biased,
            "out_bias": "o" in self.found.biased,
            "sinks": "sinks" in self.found,
            "qk_norm": self._qk_norm(),
            "qkv": "apart" if apart else self.family.qkv,
        }

    def _kv_heads(self) -> int:
        stated = self.settings.get("kv_heads", int)
        grouped = self.settings.get("new_decoder_architecture", bool, False)
        if self.settings.get("multi_query", bool, False) and not grouped:
            return 1
        if "k" in self.found and "k" in self.found.shapes and self.head_dim and not self.family.transposed:
            return max(self.found.shapes["k"][0] // self.head_dim, 1)
        return stated or self.heads

    def _qk_norm(self) -> str:
        if "q_norm" not in self.found:
            return "none"
        shape = self.found.shapes.get("q_norm", ())
        if len(shape) != 1:
            self.obstacles.append(f"{self.names['q_norm']} has shape {shape}: each head has its own norm")
        self.assume("queries and keys are normed before they rotate")
        return "head" if shape == (self.head_dim,) else "all"

    def _mlp(self) -> dict[str, Any]:
        own = self.settings.get("activation", str, "silu")
        if own not in ACTIVATIONS:
            self.obstacles.append(f"the activation {own}: a description has {', '.join(said.ACTIVATIONS)}")
        gate = "apart" if "gate_up" not in self.found else "gate_up"
        shape = self.found.shapes.get("up" if gate == "apart" else "gate_up", (self.settings.get("intermediate_size"),))
        rows = shape[-1] if self.family.transposed else shape[0]
        return {
            "inner_size": rows if gate == "apart" else (rows or 0) // 2,
            "activation": ACTIVATIONS.get(own, own),
            "gated": "gate" in self.found or gate != "apart",
            "bias": "down" in self.found.biased,
            "gate": gate,
        }

    def _positions(self) -> tuple[str, int]:
        """The kind of positions beside rotation, and the row that the first token takes."""
        first = self.family.first
        if first == "pad":
            first = self.settings.get("pad_token_id", int, 1) + 1
        if "positions" not in self.found:
            return self.family.positions or "none", int(first) if self.family.positions else 0
        spare = self.found.shapes["positions"][0] - self.settings.count("positions")
        return "learned", int(first) or max(spare, 0)

    def _longest(self, first: int) -> int:
        return self.found.shapes["positions"][0] - first

    def _embedding_scale(self) -> float:
        asked = self.settings.get("scale_embedding", bool, self.family.scaled)
        scaled = self.family.scaled and asked
        return math.sqrt(self.hidden) if scaled else self.settings.real("embedding_multiplier") or 1.0

    def _layer_types(self, positions: str) -> dict[str, Any]:
        window = self.settings.get("window", int)
        if self.settings.get("use_sliding_window", bool, True) is False:
            window = None
        listed = self.settings.get("layer_types", list)
        period = self.settings.get("sliding_window_pattern", int)
        if listed is None and period and window:
            listed = ["full_attention" if (layer + 1) % period == 0 else SLIDES[0] for layer in range(self.layers)]
        if listed is None and window:
            self.assume(f"every layer has the window of {window} tokens")
        listed = listed or [SLIDES[0] if window else "full_attention"] * self.layers
        for kind in sorted({str(kind) for kind in listed} - {*TYPES}):
            self.obstacles.append(f"layers of type {kind}")
        ropes = self._ropes() if positions == "none" else {}
        rope = next(iter(ropes), None)
        local = "local" if "local" in ropes else rope
        rotates = self.family.full_rotates or not window
        slides = [bool(window) and kind in SLIDES for kind in listed]
        named = [local if slide else rope if rotates else None for slide in slides]
        thetas = self.settings.get("layer_rope_theta", list)
        if thetas is not None and ropes:
            ropes, named = self._ropes_by_layer(ropes[said.MAIN], thetas)
        many = len(set(named)) > len(set(slides))
        names = [
            ("sliding" if slide else "full") + (f"_{own or 'no_rope'}" if many else "")
            for slide, own in zip(slides, named)
        ]
        types = {
            name: {"window": window if slide else 0, "rope": own} for name, slide, own in zip(names, slides, named)
        }
        period = next(n for n in range(1, len(names) + 1) if all(name == names[i % n] for i, name in enumerate(names)))
        return {"ropes": ropes, "layer_types": types, "pattern": names[:period]}

    def _ropes_by_layer(self, main: dict[str, Any], thetas: list[Any]) -> tuple[dict[str, Any], list[str | None]]:
        """A rope for each theta of a layer, and its name in each layer; a theta of 0 is none."""
        if len(thetas) != self.layers:
            self.obstacles.append(f"layer_rope_theta has {len(thetas)} entries for {self.layers} layers")
        given = [theta for theta in dict.fromkeys(thetas) if theta]
        ropes = {theta: said.MAIN if place == 0 else f"theta_{theta:g}" for place, theta in enumerate(given)}
        return {name: {**main, "theta": float(theta)} for theta, name in ropes.items()}, [ropes.get(t) for t in thetas]

    def _ropes(self) -> dict[str, Any]:
        theta = self.settings.real("theta")
        if theta is None:
            self.assume("rotary positions with a theta of 10,000: the config has none, and the file has no table")
        self.assume(f"channels rotate in {self.family.pairs}")
        part = self.settings.real("part")
        dim = self.settings.get("rotary_dim", int) or int(self.head_dim * (1.0 if part is None else part))
        scaling = self.settings.values.get("rope_scaling")
        made = {
            "main": {"theta": theta or 10_000.0, "dim": dim, "pairs": self.family.pairs, "scaling": _scaling(scaling)}
        }
        local = self.settings.real("rope_local_base_freq")
        if local is not None:
            other = self.settings.get("rope_local_scaling", dict)
            made["local"] = {**made["main"], "theta": local, "scaling": _scaling(other)}
        return made

    def _output(self) -> dict[str, Any]:
        tied = self.settings.get("tie_word_embeddings", bool, "head" not in self.found)
        scale = self.settings.real("logit_scale") or 1.0 / (self.settings.real("logits_scaling") or 1.0)
        return {
            "tied": tied or "head" not in self.found,
            "bias": "head" in self.found.biased and not tied,
            "scale": scale,
            "cap": self.settings.real("final_logit_softcapping"),
        }

    def _wanted(self, made: Mapping[str, Any]) -> list[str]:
        """The parts of such a model, in the order of a description."""
        sections = ("embedding", "norm", "block", "attention", "mlp", "output")
        read: list[Any] = [said.section(name, made[name]) if name in made else None for name in sections]
        return list(said.roles(*read))


def _scaling(given: Any) -> dict[str, Any] | None:
    """rope_scaling without what is said elsewhere; None where nothing is scaled."""
    if not isinstance(given, dict) or given.get("rope_type", given.get("type", "default")) == "default":
        return None
    return {key: value for key, value in given.items() if key not in ("rope_theta", "partial_rotary_factor")}
