"""CTranslate2: an encoder in f32 and int8, a causal model in int8, from its own converted folders (benchmarks/peers/export.py)."""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import _padded

NAME = "CTranslate2"
PACKAGES = {"ctranslate2": "ctranslate2", "tokenizers": "tokenizers", "numpy": "numpy"}
SETTINGS = {"embed": ["f32", "bf16", "int8"], "generate": ["int8", "int8 bf16"]}
COMPUTE = {"f32": "float32", "bf16": "bfloat16", "int8": "int8", "int8 bf16": "int8_bfloat16"}
BATCH = 32


class Peer:
    def load(self, task, model, threads, setting, files=""):
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

    def run(self, ids):
        import numpy as np

        hidden = self.model.forward_batch(ids).last_hidden_state
        if "float32" not in str(hidden.dtype):
            hidden = hidden.to(self.library.DataType.float32)
        lengths = np.array([len(row) for row in ids])
        mask = (np.arange(hidden.shape[1])[None] < lengths[:, None]).astype(np.int64)
        return _padded.pooled(np.array(hidden), mask)

    def embed(self, texts):
        return _padded.embed(self.tokenizer, texts, BATCH, self.run)

    def together(self, prompts, tokens):
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

    def decode(self, prompt, tokens):
        return self.together([prompt], tokens)

    def prefill(self, prompt):
        return self.together([prompt], 1)

    def parallel(self, prompts, tokens):
        return self.together(prompts, tokens)
