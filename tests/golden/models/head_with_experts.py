"""Make mtp-experts.npz: logits of heads for multi-token prediction whose layer has experts (tests/models/tiny_head.py).

transformers has no such head, so it is put together here from its description, as in train_mtp.py: the layer is
transformers', and so is the model whose hidden states it reads.

python tests/golden/models/head_with_experts.py
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "models"), str(HERE.parent), str(HERE)]
import tiny  # noqa: E402
import tiny_head  # noqa: E402
from made_with import note_versions  # noqa: E402
from make_models import loaded  # noqa: E402


def normed(x: torch.Tensor, weight: np.ndarray, eps: float) -> torch.Tensor:
    """An RMS norm whose weight is stored less one."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * (1 + torch.from_numpy(weight))


def drafted(cfg: dict[str, Any]) -> np.ndarray:
    """The head's logits for all tokens of the text but the last two."""
    head, eps = tiny_head.head(cfg), cfg["rms_norm_eps"]
    made, layer = getattr(transformers, cfg["architectures"][0]), tiny_head.attending(cfg)
    model = loaded(cfg, made)
    moved = {name.replace("mtp.layers.0", f"model.layers.{layer}"): value for name, value in head.items()}
    other = loaded(cfg, made, {**tiny.weights(cfg), **{k: v for k, v in moved.items() if not k.startswith("mtp.")}})
    ids = torch.from_numpy(tiny.token_ids(cfg, tiny_head.LENGTH).astype(np.int64))[None]
    with torch.no_grad():
        hidden = model.model(ids[:, :-1], use_cache=False).last_hidden_state[:, :-1]
        e = normed(model.model.embed_tokens(ids[:, 1:-1]), head["mtp.pre_fc_norm_embedding.weight"], eps)
        h = normed(hidden, head["mtp.pre_fc_norm_hidden.weight"], eps)
        x = torch.cat([e, h], -1) @ torch.from_numpy(head["mtp.fc.weight"]).T
        count = x.shape[1]
        places = torch.arange(count)[None]
        turned = other.model.rotary_emb(x, places if "next" in cfg["model_type"] else places[None].expand(3, 1, -1))
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        x = other.model.layers[layer](x, position_embeddings=turned, attention_mask=mask)
        x = x[0] if isinstance(x, tuple) else x
        return model.lm_head(normed(x, head["mtp.norm.weight"], eps))[0].numpy()


if __name__ == "__main__":
    found = {name: drafted(cfg) for name, cfg in tiny_head.CONFIGS.items()}
    np.savez_compressed(HERE / "mtp-experts.npz", **found)
    note_versions(HERE / "mtp-experts.npz", "torch", "transformers", "numpy")
    print({name: (values.shape, float(np.abs(values).max())) for name, values in found.items()})
