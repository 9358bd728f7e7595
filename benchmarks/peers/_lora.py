"""What peers that train share: the model of a GGUF file widened to float32, and the adapter that is trained.

    python _lora.py MODEL.gguf FOLDER       writes the widened model, in a process of its own: reading GGUF takes memory

Not a peer. A waiting thread of OpenMP spins by default, which takes the cores from the engine whose turn it is, and
where there are several pools from its own process: here it sleeps. It must be said before PyTorch is imported.
"""

import os
import subprocess
import sys
import tempfile
from typing import Any

os.environ["OMP_WAIT_POLICY"] = "passive"

RANK, ALPHA, RATE, CLIP = 8, 16, 2e-4, 1.0


class Opened:
    """The model in float32 and its tokenizer, from a folder; a GGUF file is widened into one first."""

    def __init__(self, path: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        with tempfile.TemporaryDirectory() as folder:
            if os.path.isfile(path):
                subprocess.run([sys.executable, __file__, path, folder], check=True)
                path = folder
            self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
            self.tokenizer = AutoTokenizer.from_pretrained(path)


def adapter() -> Any:
    from peft import LoraConfig

    return LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules="all-linear")


def widen(path: str, folder: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, name = os.path.split(path)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.float32)
    model.hf_quantizer = None  # the weights are widened by now, and may be written
    model.config.quantization_config = None
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(folder)


if __name__ == "__main__":
    widen(*sys.argv[1:])
