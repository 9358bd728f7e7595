"""What a draft head costs where its drafts are no use: tokens per second beside plain decoding, in turns.

    python benchmarks/drafts.py
    python benchmarks/drafts.py --layers 24 --tokens 256 --rounds 10

The model has the shapes of Qwen3.5-0.8B with fewer layers and random weights, in bfloat16, and a head of random
weights: its drafts are never right, and sampled texts do not repeat themselves. Bound by memory: a step reads all
weights. On a machine that others use, compare the processor time of one thread.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from weft.dtype import DTYPES, f32_to_bf16
from weft.generate import Engine, Request, Sampling
from weft.runtime import Decoder, open_checkpoint
from weft.weights.files import TensorView
from weft.weights.safetensors import write_safetensors

HIDDEN, WIDE, VOCAB, HEADS, GROUPS, DIM = 1024, 3584, 32_000, 8, 2, 256
LINEAR_HEADS, LINEAR_DIM, WIDTH = 16, 128, 4


def config(layers: int) -> dict[str, Any]:
    return {
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": WIDE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "head_dim": DIM,
        "partial_rotary_factor": 0.25,
        "rope_theta": 10_000_000.0,
        "max_position_embeddings": 32_768,
        "linear_num_key_heads": LINEAR_HEADS,
        "linear_num_value_heads": LINEAR_HEADS,
        "linear_key_head_dim": LINEAR_DIM,
        "linear_value_head_dim": LINEAR_DIM,
        "linear_conv_kernel_dim": WIDTH,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
    }


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    values = LINEAR_HEADS * LINEAR_DIM
    mlp = {
        "mlp.gate_proj.weight": (WIDE, HIDDEN),
        "mlp.up_proj.weight": (WIDE, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, WIDE),
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
    }
    attention = {
        "self_attn.q_proj.weight": (2 * HEADS * DIM, HIDDEN),
        "self_attn.k_proj.weight": (GROUPS * DIM, HIDDEN),
        "self_attn.v_proj.weight": (GROUPS * DIM, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, HEADS * DIM),
        "self_attn.q_norm.weight": (DIM,),
        "self_attn.k_norm.weight": (DIM,),
    }
    delta = {
        "linear_attn.in_proj_qkv.weight": (3 * values, HIDDEN),
        "linear_attn.in_proj_z.weight": (values, HIDDEN),
        "linear_attn.in_proj_b.weight": (LINEAR_HEADS, HIDDEN),
        "linear_attn.in_proj_a.weight": (LINEAR_HEADS, HIDDEN),
        "linear_attn.conv1d.weight": (3 * values, 1, WIDTH),
        "linear_attn.out_proj.weight": (HIDDEN, values),
        "linear_attn.norm.weight": (LINEAR_DIM,),
        "linear_attn.A_log": (LINEAR_HEADS,),
        "linear_attn.dt_bias": (LINEAR_HEADS,),
    }
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(layers):
        mixer = attention if layer % 4 == 3 else delta
        found |= {f"model.layers.{layer}.{name}": shape for name, shape in (mlp | mixer).items()}
    found |= {f"mtp.layers.0.{name}": shape for name, shape in (mlp | attention).items()}
    found |= {f"mtp.{name}.weight": (HIDDEN,) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
    return found | {"mtp.fc.weight": (HIDDEN, 2 * HIDDEN)}


def write_model(folder: Path, layers: int) -> Path:
    rng = np.random.default_rng(0)
    tensors = {}
    for name, shape in shapes(layers).items():
        scale = 0.02 if len(shape) == 1 else shape[-1] ** -0.5
        values = rng.standard_normal(shape, np.float32) * np.float32(scale)
        tensors[name] = TensorView(DTYPES["bf16"], shape, f32_to_bf16(values))
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config(layers)))
    return folder


def speed(engine: Engine, tokens: int, seed: int) -> tuple[float, float]:
    """Tokens per second after the first, and tokens per second of processor time."""
    prompt = tuple(np.random.default_rng(seed).integers(0, VOCAB, 64).tolist())
    request = Request(prompt, Sampling(1.0, seed=seed), max_tokens=tokens, ignore_eos=True, prefix_cache=False)
    before = time.process_time()
    result = engine.submit(request).result()
    return result.timings.predicted_per_second, tokens / (time.process_time() - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = write_model(Path(folder), given.layers)
        engines = {}
        for name in ("none", "mtp"):
            options: dict[str, Any] = {"context": 2048, "threads": given.threads, "draft_head": name == "mtp"}
            engines[name] = Engine(Decoder(open_checkpoint(checkpoint), **options), draft=name)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
        for number in range(given.rounds + 1):
            for name, engine in engines.items():
                per_second = speed(engine, given.tokens, seed=number)
                if number:  # the first one binds weights and learns costs
                    found[name].append(per_second)
        stats = engines["mtp"].stats()
    ratios = [[mtp / none for mtp, none in zip(*pair)] for pair in zip(found["mtp"], found["none"])]
    print(f"{'':8}{'tokens/s':>10}{'of processor time':>20}")
    for name, speeds in found.items():
        print(
            f"{name:8}"
            + "".join(f"{statistics.median(some):{width}.2f}" for some, width in zip(zip(*speeds), (10, 20)))
        )
    row = {
        "case": "useless_drafts",
        "layers": given.layers,
        "threads": given.threads,
        "ratio": round(statistics.median(wall for wall, _ in ratios), 4),
        "processor_ratio": round(statistics.median(own for _, own in ratios), 4),
        "ratios": [[round(part, 3) for part in ratio] for ratio in ratios],
        "drafted": stats.drafted_tokens,
        "accepted": stats.accepted_tokens,
        "machine": platform.processor() or platform.machine(),
        "time": round(time.time()),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
