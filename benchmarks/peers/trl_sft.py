"""TRL's SFTTrainer with gradient checkpointing: one step, for the memory that it takes."""

import os
import sys
import tempfile
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import _lora

NAME = "TRL"
PACKAGES = {"torch": "torch", "transformers": "transformers", "peft": "peft", "trl": "trl", "gguf": "gguf"}
SETTINGS = {"train_memory": ["f32 checkpointing"]}


class Peer:
    def load(self, task: str, model: str, threads: int, setting: str, context: int, files: str) -> dict[str, Any]:
        import torch

        torch.set_num_threads(threads)
        self.opened = _lora.Opened(model)
        return {"about": "SFTTrainer, float32"}

    def begin(self, lessons: list[dict[str, list[int]]]) -> list[float]:
        """One step of the trainer on these lessons; returns its loss."""
        from datasets import Dataset
        from trl import SFTConfig, SFTTrainer

        with tempfile.TemporaryDirectory() as folder:
            options = SFTConfig(
                output_dir=folder, max_steps=1, per_device_train_batch_size=len(lessons), gradient_checkpointing=True,
                max_length=None, learning_rate=_lora.RATE, max_grad_norm=_lora.CLIP, bf16=False, fp16=False,
                use_cpu=True, report_to="none", save_strategy="no", logging_steps=1, disable_tqdm=True,
            )  # fmt: skip
            rows = [{"input_ids": one["ids"], "completion_mask": one["learnt"]} for one in lessons]
            trainer = SFTTrainer(
                self.opened.model,
                options,
                train_dataset=Dataset.from_list(rows),
                processing_class=self.opened.tokenizer,
                peft_config=_lora.adapter(),
            )
            trainer.train()
        return [float(next(line["loss"] for line in trainer.state.log_history if "loss" in line))]
