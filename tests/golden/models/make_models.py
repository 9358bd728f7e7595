"""Make tiny-models.npz: what transformers computes in float32 for the tiny random checkpoints of tests/models/tiny.py.

python tests/golden/models/make_models.py        (needs torch and transformers; the package needs neither)
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "models"))
import tiny  # noqa: E402


def run(name: str) -> dict[str, np.ndarray]:
    cfg = tiny.CONFIGS[name]
    classes = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "bert": (transformers.BertConfig, lambda config: transformers.BertModel(config, add_pooling_layer=False)),
    }
    config_class, model_class = classes[cfg["model_type"]]
    model = model_class(config_class.from_dict({**cfg, "attn_implementation": "eager"})).eval().float()
    tensors = {key: torch.from_numpy(value) for key, value in tiny.weights(cfg).items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected, unexpected
    assert all("lm_head" in key or "position_ids" in key for key in missing), missing
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    found = {}
    with torch.no_grad():
        for length in tiny.LENGTHS:
            ids = torch.from_numpy(tiny.token_ids(cfg, length).astype(np.int64))[None]
            result = model(input_ids=ids, attention_mask=torch.ones_like(ids))
            values = result.logits if cfg["model_type"] == "llama" else result.last_hidden_state
            found[f"{name}/{length}"] = values[0].numpy().astype(np.float32)
    return found


def main() -> None:
    arrays: dict[str, np.ndarray] = {}
    for name in tiny.CONFIGS:
        results = run(name)
        longest = max(tiny.LENGTHS)
        if tiny.CONFIGS[name]["model_type"] == "llama":  # causal: the longest run holds the shorter ones
            for length in tiny.LENGTHS:
                short, long = results[f"{name}/{length}"], results[f"{name}/{longest}"]
                assert np.abs(short - long[:length]).max() < 1e-4, (name, length)
            results = {f"{name}/{longest}": results[f"{name}/{longest}"]}
        arrays.update(results)
    np.savez_compressed(HERE / "tiny-models.npz", **arrays)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}: {len(arrays)} arrays")


main()
