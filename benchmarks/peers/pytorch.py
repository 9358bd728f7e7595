"""PyTorch: sentence-transformers as its users run it, a lean loop in bf16, and transformers' causal models in bf16; the
weights are those of the GGUF file, widened by benchmarks/peers/export.py or when they are read.

On a GPU causal models have halves: eager, and with steps that are compiled, over a cache of fixed size."""

import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import _padded

NAME = "PyTorch"
PACKAGES = {
    "torch": "torch",
    "transformers": "transformers",
    "sentence_transformers": "sentence-transformers",
    "tokenizers": "tokenizers",
    "numpy": "numpy",
}
SETTINGS = {"embed": ["f32 sentence-transformers", "bf16 sentence-transformers", "bf16 lean"], "generate": ["bf16"]}
GPU = {
    "embed": ["f32 sentence-transformers on CUDA", "bf16 sentence-transformers on CUDA", "bf16 lean on CUDA"],
    "generate": ["f16 eager on CUDA", "f16 compiled on CUDA"],
}
BATCH, GPU_BATCH = 32, 128
KINDS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


class Peer:
    def load(self, task: str, model: str, threads: int, setting: str, context: int, files: str) -> dict[str, Any]:
        import torch

        torch.set_num_threads(threads)
        self.torch = torch
        self.kind = getattr(torch, KINDS[setting.split()[0]])
        self.device = "cpu"
        if setting.endswith("on CUDA"):
            number = os.environ.get("WEFT_BACKEND", "").partition(":")[2]  # the GPU that weft uses
            self.device = f"cuda:{number or 0}"
            if not torch.cuda.is_available():
                raise RuntimeError("this PyTorch sees no GPU")
        self.batch = BATCH if self.device == "cpu" else GPU_BATCH
        if task == "generate":
            return self.load_causal(model, files, context if "compiled" in setting else 0)
        if "sentence-transformers" in setting:
            from sentence_transformers import SentenceTransformer

            self.sentence = SentenceTransformer(model, device=self.device).to(self.kind)
            self.sentence.max_seq_length = 512
            return {"about": f"sentence-transformers, batches of {self.batch}"}
        from transformers import AutoModel

        self.sentence = None
        self.model = AutoModel.from_pretrained(model, dtype=self.kind, add_pooling_layer=False).eval().to(self.device)
        self.tokenizer = _padded.tokenizer_of(model)
        return {"about": f"transformers, sorted batches of {self.batch}"}

    def load_causal(self, model: str, files: str, room: int) -> dict[str, Any]:
        """With `room` for so many tokens, steps are compiled."""
        from transformers import AutoModelForCausalLM

        folder, given = os.path.join(files, "hf"), {}
        if not os.path.isdir(folder):
            folder, name = os.path.split(model)
            given = {"gguf_file": name}
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=self.kind, **given).eval().to(self.device)
        self.room, self.caches = room, {}
        if room:
            self.step = self.torch.compile(self.model.forward, mode="reduce-overhead", fullgraph=True)
            return {"about": "transformers, steps compiled (reduce-overhead) over a cache of fixed size"}
        return {"about": f"transformers, eager, widened to {str(self.kind).removeprefix('torch.')}"}

    def embed(self, texts: list[str]) -> Any:
        with self.torch.inference_mode():
            if self.sentence is not None:
                given = {"batch_size": self.batch, "show_progress_bar": False, "convert_to_tensor": True}
                vectors = self.sentence.encode(texts, **given)
                return self.torch.nn.functional.normalize(vectors.float()).cpu().numpy()
            return _padded.embed(self.tokenizer, texts, self.batch, self.run)

    def run(self, ids: list[list[int]]) -> Any:
        tokens, mask = (self.torch.from_numpy(one).to(self.device) for one in _padded.padded(ids))
        hidden = self.model(input_ids=tokens, attention_mask=mask).last_hidden_state.float()
        weights = mask[:, :, None].float()
        return self.torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1)).cpu().numpy()

    def together(self, prompts: list[list[int]], tokens: int) -> list[int]:
        torch = self.torch
        with torch.inference_mode():
            ids, made = torch.tensor(prompts, device=self.device), []
            step, given = self.model, {"past_key_values": self.cache_for(len(prompts))}
            for _ in range(tokens):
                torch.compiler.cudagraph_mark_step_begin()
                logits = step(input_ids=ids, use_cache=True, logits_to_keep=1, **given).logits
                ids = logits[:, -1].argmax(-1, keepdim=True).clone()  # a graph's results are its own
                made.append(ids[0, 0])
                if self.room:
                    step = self.step  # the prompt has its own length, and is not compiled
            return torch.stack(made).tolist()

    def cache_for(self, sequences: int) -> Any:
        """An empty cache. One of fixed size is the same object each time: a graph writes where it was."""
        from transformers import DynamicCache, StaticCache

        if not self.room:
            return DynamicCache(config=self.model.config)
        if sequences not in self.caches:
            size = self.room // sequences  # of each
            self.caches[sequences] = StaticCache(config=self.model.config, max_cache_len=size)
        self.caches[sequences].reset()
        return self.caches[sequences]

    def decode(self, prompt: list[int], tokens: int) -> list[int]:
        return self.together([prompt], tokens)

    def prefill(self, prompt: list[int]) -> list[int]:
        return self.together([prompt], 1)

    def parallel(self, prompts: list[list[int]], tokens: int) -> list[int]:
        return self.together(prompts, tokens)
