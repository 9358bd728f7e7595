"""Make measures.json: what transformers computes in float64 for the models of tests/measure/measured_cases.py.

python tests/golden/measure/make_measures.py    (needs torch, transformers and safetensors)

Perplexities in sliding windows are by the loop of transformers' own page about them; those of llama.cpp by its
definition: windows side by side, the second half scored, with and without bos. Then how far the model with noise is
from the one without: divergences, agreement, and the hidden states after each layer but the last, which transformers
gives only after the last norm.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
FOLDERS = (HERE.parent, HERE.parent / "train", *(HERE.parents[1] / part for part in ("train", "models", "measure")))
sys.path[:0] = [*map(str, FOLDERS), str(HERE.parents[2])]
import make_gradients  # noqa: E402
import measured_cases as cases  # noqa: E402
import torch  # noqa: E402
from made_with import note_versions  # noqa: E402
from torch.nn import functional  # noqa: E402


def model_with(noise: float) -> Any:
    made = make_gradients.model_of(cases.CONFIG, "f32")
    state = {name: torch.from_numpy(values).double() for name, values in cases.tensors(noise).items()}
    missing, unexpected = made.load_state_dict(state, strict=False)
    assert not unexpected and all("lm_head" in name or "inv_freq" in name for name in missing), (missing, unexpected)
    return made


def sliding(model: Any, ids: torch.Tensor, window: int, stride: int) -> dict[str, float]:
    losses, end = [], 0
    for begin in range(0, len(ids), stride):
        last = min(begin + window, len(ids))
        fresh = last - end
        labels = ids[begin:last].clone()
        labels[:-fresh] = -100
        logits = model(input_ids=ids[None, begin:last], use_cache=False).logits[0]
        each = functional.cross_entropy(logits[:-1], labels[1:], ignore_index=-100, reduction="none")
        losses += each[labels[1:] != -100].tolist()
        end = last
        if last == len(ids):
            break
    return {"perplexity": float(np.exp(np.mean(losses))), "targets": len(losses)}


def llama(model: Any, ids: torch.Tensor, window: int, bos: int | None) -> dict[str, float]:
    losses, half = [], window // 2
    for chunk in range(len(ids) // window):
        part = ids[chunk * window : (chunk + 1) * window].clone()
        if bos is not None:
            part[0] = bos
        logits = model(input_ids=part[None], use_cache=False).logits[0]
        losses += functional.cross_entropy(logits[half:-1], part[half + 1 :], reduction="none").tolist()
    return {"perplexity": float(np.exp(np.mean(losses))), "targets": len(losses)}


def compared(left: Any, right: Any, ids: torch.Tensor) -> dict[str, Any]:
    a, b = (model(input_ids=ids[None], use_cache=False, output_hidden_states=True) for model in (left, right))
    first, second = (functional.log_softmax(found.logits[0][:-1], dim=1) for found in (a, b))
    apart = functional.kl_div(second, first, log_target=True, reduction="none").sum(dim=1).numpy()
    layers = []
    for mine, other in zip(a.hidden_states[1:-1], b.hidden_states[1:-1]):
        far = (mine[0] - other[0]).norm(dim=1) / mine[0].norm(dim=1)
        layers.append(float(far.mean()))
    return {
        "mean": float(apart.mean()),
        "median": float(np.median(apart)),
        "p99": float(np.quantile(apart, 0.99)),
        "max": float(apart.max()),
        "worst": [int(place) + 1 for place in np.argsort(-apart)[:3]],
        "agreement": float((first.argmax(dim=1) == second.argmax(dim=1)).double().mean()),
        "layers": layers,
    }


def main() -> None:
    with torch.no_grad():
        plain, noisy = model_with(0.0), model_with(cases.NOISE)
        ids = torch.from_numpy(cases.ids())
        bos = cases.CONFIG["bos_token_id"]
        with_bos = torch.cat([torch.tensor([bos]), ids])
        found: dict[str, Any] = {name: sliding(plain, ids, *sizes) for name, sizes in cases.SLIDING.items()}
        found |= {name: llama(plain, ids, size, None) for name, size in cases.LLAMA.items()}
        found |= {f"{name}_bos": llama(plain, with_bos, size, bos) for name, size in cases.LLAMA.items()}
        found |= {"noisy": sliding(noisy, ids, 2048, 256), "compared": compared(plain, noisy, ids)}
    path = HERE / "measures.json"
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    note_versions(path, "torch", "transformers", "numpy")


if __name__ == "__main__":
    main()
