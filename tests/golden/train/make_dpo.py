"""Make dpo.npz: the loss of preference training and its gradients by torch, in float64, for the pairs of
tests/train/preference_case.py.

python tests/golden/train/make_dpo.py    (needs torch and transformers; the package needs none of them)
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), *(str(HERE.parents[1] / part) for part in ("models", "train")), str(HERE.parents[2])]
import preference_case as case  # noqa: E402
import tiny  # noqa: E402
from made_with import note_versions  # noqa: E402


def base_model() -> torch.nn.Module:
    cfg = tiny.CONFIGS[case.NAME]
    config = transformers.AutoConfig.for_model(**{**cfg, "attn_implementation": "eager"})
    model = getattr(transformers, cfg["architectures"][0])(config).eval()
    model.load_state_dict({key: torch.from_numpy(value) for key, value in tiny.weights(cfg).items()}, strict=False)
    model.tie_weights()
    return model.double()


def likelihoods(model: torch.nn.Module, changes: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    found = []
    for ids, prompt in case.sequences():
        tokens = torch.from_numpy(ids.astype(np.int64))[None]
        logits = torch.func.functional_call(model, changes, (), {"input_ids": tokens}).logits[0]
        chances = torch.log_softmax(logits[:-1], dim=-1)[torch.arange(len(ids) - 1), tokens[0, 1:]]
        found.append(chances[prompt - 1 :].sum())
    return found


def main() -> None:
    model = base_model()
    own = dict(model.named_parameters())
    trained = {
        name: tuple(torch.from_numpy(part).double().requires_grad_() for part in parts)
        for name, parts in case.matrices().items()
    }
    changed = {name: own[name].detach() + case.SCALE * (up @ down) for name, (down, up) in trained.items()}
    with torch.no_grad():
        before = likelihoods(model, {})
    now = likelihoods(model, changed)
    rises = [one - other for one, other in zip(now, before)]
    margins = torch.stack([chosen - rejected for chosen, rejected in zip(rises[::2], rises[1::2])])
    loss = -torch.nn.functional.logsigmoid(case.BETA * margins).mean()
    loss.backward()
    arrays = {"loss": loss.detach().numpy(), "margins": margins.detach().numpy()}
    for name, (down, up) in trained.items():
        arrays[f"down.{name}"], arrays[f"up.{name}"] = down.grad.numpy(), up.grad.numpy()
    np.savez_compressed(HERE / "dpo.npz", **arrays)
    note_versions(HERE / "dpo.npz", "torch", "transformers", "numpy")


if __name__ == "__main__":
    main()
