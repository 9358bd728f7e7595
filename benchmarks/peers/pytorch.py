"""PyTorch: sentence-transformers as its users run it, a lean loop in bf16, and transformers' causal models in bf16; the
weights are those of the GGUF file, widened by benchmarks/peers/export.py or when they are read."""

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
BATCH = 32


class Peer:
    def load(self, task: str, model: str, threads: int, setting: str, context: int, files: str) -> dict[str, Any]:
        import torch

        torch.set_num_threads(threads)
        self.torch = torch
        self.kind = torch.bfloat16 if setting.startswith("bf16") else torch.float32
        if task == "generate":
            return self.load_causal(model, files)
        if "sentence-transformers" in setting:
            from sentence_transformers import SentenceTransformer

            self.sentence = SentenceTransformer(model, device="cpu").to(self.kind)
            self.sentence.max_seq_length = 512
            return {"about": f"sentence-transformers, batches of {BATCH}"}
        from transformers import AutoModel

        self.sentence = None
        self.model = AutoModel.from_pretrained(model, dtype=self.kind, add_pooling_layer=False).eval()
        self.tokenizer = _padded.tokenizer_of(model)
        return {"about": f"transformers, sorted batches of {BATCH}"}

    def load_causal(self, model: str, files: str) -> dict[str, Any]:
        from transformers import AutoModelForCausalLM

        folder, given = os.path.join(files, "hf"), {}
        if not os.path.isdir(folder):
            folder, name = os.path.split(model)
            given = {"gguf_file": name}
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=self.kind, **given).eval()
        return {"about": "transformers, eager, widened to bfloat16"}

    def embed(self, texts: list[str]) -> Any:
        with self.torch.inference_mode():
            if self.sentence is not None:
                vectors = self.sentence.encode(texts, batch_size=BATCH, show_progress_bar=False, convert_to_tensor=True)
                return self.torch.nn.functional.normalize(vectors.float()).numpy()
            return _padded.embed(self.tokenizer, texts, BATCH, self.run)

    def run(self, ids: list[list[int]]) -> Any:
        tokens, mask = map(self.torch.from_numpy, _padded.padded(ids))
        hidden = self.model(input_ids=tokens, attention_mask=mask).last_hidden_state.float()
        weights = mask[:, :, None].float()
        return self.torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1)).numpy()

    def together(self, prompts: list[list[int]], tokens: int) -> list[int]:
        from transformers import DynamicCache

        with self.torch.inference_mode():
            cache, ids, made = DynamicCache(config=self.model.config), self.torch.tensor(prompts), []
            for _ in range(tokens):
                logits = self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
                ids = logits[:, -1].argmax(-1, keepdim=True)
                made.append(int(ids[0, 0]))
            return made

    def decode(self, prompt: list[int], tokens: int) -> list[int]:
        return self.together([prompt], tokens)

    def prefill(self, prompt: list[int]) -> list[int]:
        return self.together([prompt], 1)

    def parallel(self, prompts: list[list[int]], tokens: int) -> list[int]:
        return self.together(prompts, tokens)
