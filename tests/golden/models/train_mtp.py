"""Make mtp.npz: a tiny Qwen3.5 with a head for multi-token prediction, trained on a small language (mtp_language.py).

The trunk is transformers'. Its own files have no such head, so the head is written out here from its description: the
norms of the next token's embedding and of the final-normed hidden state, `fc` over the two side by side, one layer of
gated attention, a norm, and the model's own logits. The file holds the weights in f16, a text, and the logits of trunk
and head for it, with the weights as stored.

python tests/golden/models/train_mtp.py
"""

import sys
from pathlib import Path

import numpy as np
import torch
from mtp_language import CONFIG, text
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from made_with import note_versions  # noqa: E402

STEPS, BATCH, LENGTH = 700, 24, 72


class Head(torch.nn.Module):
    """Logits of the token after the next one, from the final-normed hidden states and the next tokens."""

    def __init__(self, config: Qwen3_5TextConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.pre_fc_norm_embedding = Qwen3_5RMSNorm(hidden, eps=eps)
        self.pre_fc_norm_hidden = Qwen3_5RMSNorm(hidden, eps=eps)
        self.fc = torch.nn.Linear(2 * hidden, hidden, bias=False)
        attending = config.layer_types.index("full_attention")
        self.layers = torch.nn.ModuleList([Qwen3_5DecoderLayer(config, attending)])
        self.norm = Qwen3_5RMSNorm(hidden, eps=eps)

    def forward(self, model: Qwen3_5ForCausalLM, following: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        e = self.pre_fc_norm_embedding(model.model.embed_tokens(following))
        x = self.fc(torch.cat([e, self.pre_fc_norm_hidden(hidden)], -1))
        count = x.shape[1]
        positions = torch.arange(count).view(1, 1, -1).expand(3, x.shape[0], -1)
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        x = self.layers[0](x, position_embeddings=model.model.rotary_emb(x, positions), attention_mask=mask)
        return model.lm_head(self.norm(x))


def logits(model: Qwen3_5ForCausalLM, head: Head, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the trunk for ids but the last, and of the head for ids but the last two."""
    hidden = model.model(ids[:, :-1], use_cache=False).last_hidden_state
    return model.lm_head(hidden), head(model, ids[:, 1:-1], hidden[:, :-1])


def train() -> tuple[Qwen3_5ForCausalLM, Head]:
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    config = Qwen3_5TextConfig(**CONFIG, attn_implementation="eager")
    model, head = Qwen3_5ForCausalLM(config), Head(config)
    weights = [*model.parameters(), *head.parameters()]
    optimiser = torch.optim.AdamW(weights, lr=4e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, STEPS)
    entropy = torch.nn.functional.cross_entropy
    for step in range(STEPS):
        ids = torch.tensor([text(rng, LENGTH) for _ in range(BATCH)])
        first, second = logits(model, head, ids)
        losses = entropy(first.flatten(0, 1), ids[:, 1:].flatten()), entropy(second.flatten(0, 1), ids[:, 2:].flatten())
        optimiser.zero_grad()
        sum(losses).backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        schedule.step()
        if step % 50 == 0 or step == STEPS - 1:
            agreed = (second.argmax(-1) == first[:, 1:].argmax(-1)).float().mean()
            print(step, *(round(float(loss), 3) for loss in losses), "agreed", round(float(agreed), 3), flush=True)
    return model, head


def main() -> None:
    torch.set_num_threads(1)
    model, head = train()
    with torch.no_grad():
        for weight in [*model.parameters(), *head.parameters()]:
            weight.copy_(weight.half().float())
        ids = torch.tensor([text(np.random.default_rng(9), 90)])
        first, second = logits(model, head, ids)
    stored = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    stored |= {f"mtp.{name}": value for name, value in head.state_dict().items()}
    arrays = {name: value.half().numpy() for name, value in stored.items()}
    found = {"ids": ids[0].numpy(), "logits": first[0].numpy(), "mtp_logits": second[0].numpy()}
    np.savez_compressed(HERE / "mtp.npz", **arrays, **{f"golden.{name}": value for name, value in found.items()})
    note_versions(HERE / "mtp.npz", "torch", "transformers")


if __name__ == "__main__":
    main()
