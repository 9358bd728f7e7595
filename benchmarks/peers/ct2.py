"""CTranslate2: an encoder in f32 and int8, a causal model in int8, both converted by benchmarks/peers/export.py."""

import json
import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import _padded

NAME = "CTranslate2"
PACKAGES = {"ctranslate2": "ctranslate2", "tokenizers": "tokenizers", "numpy": "numpy"}
SETTINGS = {"embed": ["f32", "int8"], "generate": ["int8"]}
COMPUTE = {"f32": "float32", "int8": "int8"}  # bfloat16 it refuses on a CPU
BATCH = 32


class Peer:
    def load(self, task: str, model: str, threads: int, setting: str, context: int, files: str) -> dict[str, Any]:
        import ctranslate2

        folder = os.path.join(files, "ct2")
        if not os.path.isdir(folder):
            raise ValueError(f"no {folder}; make it with benchmarks/peers/export.py and give its folder as --files")
        self.library = ctranslate2
        make = ctranslate2.Encoder if task == "embed" else ctranslate2.Generator
        self.model = make(folder, device="cpu", compute_type=COMPUTE[setting], intra_threads=threads, inter_threads=1)
        if task == "embed":
            self.tokenizer = _padded.tokenizer_of(model)
        else:
            with open(os.path.join(folder, "vocabulary.json")) as file:
                self.vocabulary = json.load(file)
        return {"about": f"computes in {self.model.compute_type}"}

    def run(self, ids: list[list[int]]) -> Any:
        import numpy as np

        hidden = self.model.forward_batch(ids).last_hidden_state
        if "float32" not in str(hidden.dtype):
            hidden = hidden.to(self.library.DataType.float32)
        lengths = np.array([len(row) for row in ids])
        mask = (np.arange(hidden.shape[1])[None] < lengths[:, None]).astype(np.int64)
        return _padded.pooled(np.array(hidden), mask)

    def embed(self, texts: list[str]) -> Any:
        return _padded.embed(self.tokenizer, texts, BATCH, self.run)

    def together(self, prompts: list[list[int]], tokens: int) -> list[int]:
        words = [[self.vocabulary[i] for i in prompt] for prompt in prompts]
        found = self.model.generate_batch(
            words,
            min_length=tokens,
            max_length=tokens,
            include_prompt_in_result=False,
            sampling_topk=1,
            beam_size=1,
            max_batch_size=0,
        )
        return list(found[0].sequences_ids[0])

    def decode(self, prompt: list[int], tokens: int) -> list[int]:
        return self.together([prompt], tokens)

    def prefill(self, prompt: list[int]) -> list[int]:
        return self.together([prompt], 1)

    def parallel(self, prompts: list[list[int]], tokens: int) -> list[int]:
        return self.together(prompts, tokens)
