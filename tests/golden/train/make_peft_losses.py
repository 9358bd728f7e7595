"""Make peft-losses.npz: the losses of 200 steps that PyTorch and peft compute for the training of
tests/train/dates_case.py, and beside them weft's.

python tests/golden/train/make_peft_losses.py [peft] [weft]    (needs torch, transformers, peft and gguf)

transformers reads the same GGUF file into f32. Order, batches and the first matrices are weft's; the optimiser, the
clipping, the rates and the arithmetic are those of the others. Either side takes many minutes, and can be run alone.
"""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), *(str(HERE.parents[1] / part) for part in ("train", "models")), str(HERE.parents[2])]
import dates_case  # noqa: E402
from made_with import note_versions  # noqa: E402

from weft.weights.sources import locate  # noqa: E402

FILE = HERE / "peft-losses.npz"


def base_model() -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    path = locate(dates_case.MODEL).path
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)


def adapted(run: Any) -> Any:
    """PEFT's model with the first matrices of weft's run."""
    import peft
    import torch

    settings = peft.LoraConfig(
        r=run.options.rank,
        lora_alpha=run.options.alpha,
        target_modules=list(dates_case.TARGETS),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    model = peft.get_peft_model(base_model(), settings)
    own, placed = dict(model.named_parameters()), 0
    with torch.no_grad():
        for name, value in run.parameters.items():
            kind, _, weight = name.partition(".")
            side = {"down": "lora_A", "up": "lora_B"}[kind]
            own[f"base_model.model.{weight.removesuffix('.weight')}.{side}.default.weight"].copy_(
                torch.from_numpy(value)
            )
            placed += 1
    assert placed == sum(value.requires_grad for value in own.values())
    return model


def losses(model: Any, lessons: list[Any]) -> Any:
    """The sum of the losses of all targets, of texts beside each other, filled up at their ends."""
    import torch

    longest = max(len(lesson.ids) for lesson in lessons)
    ids, seen = torch.zeros(len(lessons), longest, dtype=torch.long), torch.zeros(len(lessons), longest)
    wanted = torch.full((len(lessons), longest), -100)
    for row, lesson in enumerate(lessons):
        length = len(lesson.ids)
        ids[row, :length], seen[row, :length] = torch.from_numpy(lesson.ids.astype(np.int64)), 1
        wanted[row, :length] = torch.where(torch.from_numpy(lesson.shares != 0), ids[row, :length], -100)
    logits = model(input_ids=ids, attention_mask=seen, use_cache=False).logits[:, :-1]
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), wanted[:, 1:].reshape(-1), reduction="sum"
    )


def by_peft(training: Any) -> dict[str, np.ndarray]:
    import math

    import torch
    from transformers import get_cosine_schedule_with_warmup

    run = training.run
    model = adapted(run)
    trained = [value for value in model.parameters() if value.requires_grad]
    rule = torch.optim.AdamW(trained, lr=run.options.rate, weight_decay=0.0)
    rates = get_cosine_schedule_with_warmup(rule, math.ceil(run.options.warmup * run.steps), run.steps)
    found, norms, began = [], [], time.monotonic()
    rates.step()  # transformers begins with a step at rate zero, weft with the one after it
    for batch in run.batches():
        lessons = [run.lessons[index] for index in batch]
        rule.zero_grad()
        loss = losses(model, lessons) / sum(lesson.targets for lesson in lessons)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(trained, run.options.clip)))
        rule.step()
        rates.step()
        found.append(float(loss.detach()))
        tell("peft", found, norms, began)
    with torch.no_grad():
        parts = [run.valid[first : first + 8] for first in range(0, len(run.valid), 8)]
        held = sum(float(losses(model, part)) for part in parts) / sum(lesson.targets for lesson in run.valid)
    print(f"peft: validation loss {held:.6f}", flush=True)
    return {"peft": np.asarray(found), "peft_norms": np.asarray(norms), "peft_valid": np.asarray(held)}


def by_weft(training: Any) -> dict[str, np.ndarray]:
    found, norms, held, began = [], [], None, time.monotonic()
    for step in training:
        found.append(step.loss)
        norms.append(step.norm)
        held = step.valid
        tell("weft", found, norms, began)
    print(f"weft: validation loss {held:.6f}", flush=True)
    return {"weft": np.asarray(found), "weft_norms": np.asarray(norms), "weft_valid": np.asarray(held)}


def tell(who: str, found: list[float], norms: list[float], began: float) -> None:
    print(f"{who} {len(found)}: {found[-1]:.6f} norm {norms[-1]:.6f}, {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    for name in sys.argv[1:] or ("peft", "weft"):
        made = {"peft": by_peft, "weft": by_weft}[name](dates_case.training())
        arrays = dict(np.load(FILE)) if FILE.exists() else {}
        arrays |= {"digest": np.asarray(dates_case.training().data.digest()), **made}
        np.savez_compressed(FILE, **arrays)
        note_versions(FILE, "peft", "transformers", "torch", "numpy", "gguf")


main()
