"""PyTorch with PEFT: steps of LoRA in float32, texts padded to the longest of them, as TRL's collator does.

The loop is the plain one that Trainer runs: loss, gradients, clipping, AdamW. Attention is PyTorch's fused one.
"""

import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import _lora

NAME = "PEFT"
PACKAGES = {"torch": "torch", "transformers": "transformers", "peft": "peft", "gguf": "gguf"}
SETTINGS = {"train": ["f32"]}


class Peer:
    def load(self, task: str, model: str, threads: int, setting: str, context: int, files: str) -> dict[str, Any]:
        import torch
        from peft import get_peft_model

        torch.set_num_threads(threads)
        self.torch = torch
        self.model = get_peft_model(_lora.Opened(model).model, _lora.adapter())
        self.model.train()
        self.trained = {name: value for name, value in self.model.named_parameters() if value.requires_grad}
        self.first = {name: value.detach().clone() for name, value in self.trained.items()}
        count = sum(value.numel() for value in self.trained.values())
        about = f"PyTorch {torch.__version__}, padded, {self.model.config._attn_implementation} attention"
        return {"parameters": count, "about": about}

    def begin(self, lessons: list[dict[str, list[int]]]) -> list[float]:
        """Take the adapter back to where it began, and make one step; returns the mean loss of a target before it."""
        with self.torch.no_grad():
            for name, value in self.trained.items():
                value.copy_(self.first[name])
        self.rule = self.torch.optim.AdamW(self.trained.values(), lr=_lora.RATE, weight_decay=0.0)
        width = max(len(lesson["ids"]) for lesson in lessons)
        ids, mask = self.torch.zeros((2, len(lessons), width), dtype=self.torch.int64)
        labels = self.torch.full_like(ids, -100)
        for row, lesson in enumerate(lessons):
            here = self.torch.tensor(lesson["ids"])
            ids[row, : len(here)], mask[row, : len(here)] = here, 1
            labels[row, : len(here)] = self.torch.where(self.torch.tensor(lesson["learnt"]) > 0, here, -100)
        self.batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
        return self.step()

    def step(self) -> list[float]:
        loss = self.model(**self.batch, use_cache=False).loss
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(self.trained.values(), _lora.CLIP)
        self.rule.step()
        self.rule.zero_grad()
        return [float(loss.detach())]
