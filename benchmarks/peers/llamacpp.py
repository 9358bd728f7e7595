"""llama.cpp through the C interface of llama-cpp-python: the same GGUF file, greedy, every sequence in one batch.

Embedding is one llama_encode for as many texts as have 2,048 tokens, pooled by the library; texts are cut into ids by
the tokenizers package, as for the other peers. Decoding is one llama_decode a token and the library's own greedy
sampler. Flash attention is left to the library, repacking and AMX are on (its defaults). Which instruction sets the
build has is what `load` says.
"""

import ctypes
import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import _padded

NAME = "llama.cpp"
PACKAGES = {"llama_cpp": "llama-cpp-python"}
SETTINGS = {"generate": ["default"], "embed": ["f32"]}
BATCH, UBATCH = 2048, 512
SEQUENCES = 64


class Peer:
    def load(self, task: str, model: str, threads: int, setting: str, context: int, files: str) -> dict[str, Any]:
        import llama_cpp as lib

        self.lib = lib
        self.silence = lib.llama_log_callback(lambda *_: None)  # kept: the library calls it as long as it lives
        lib.llama_log_set(self.silence, ctypes.c_void_p(0))
        lib.llama_backend_init()
        embeds = task == "embed"
        file = os.path.join(files, "model.gguf") if embeds else model
        if not os.path.isfile(file):
            raise ValueError(f"no {file}; make it with benchmarks/peers/export.py and give its folder as --files")
        self.model = lib.llama_model_load_from_file(file.encode(), lib.llama_model_default_params())
        if not self.model:
            raise ValueError(f"llama.cpp does not read {file}")
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context or BATCH, BATCH, BATCH if embeds else UBATCH
        params.n_threads = params.n_threads_batch = threads
        params.n_seq_max, params.kv_unified = SEQUENCES, True
        if embeds:
            params.embeddings, params.pooling_type = True, lib.LLAMA_POOLING_TYPE_MEAN
            self.tokenizer = _padded.tokenizer_of(model)
            self.width = lib.llama_model_n_embd(self.model)
        self.context = lib.llama_init_from_model(self.model, params)
        self.memory = lib.llama_get_memory(self.context)
        self.sampler = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        lib.llama_sampler_chain_add(self.sampler, lib.llama_sampler_init_greedy())
        self.batch = lib.llama_batch_init(BATCH, 0, 1)
        return {"about": " ".join(lib.llama_print_system_info().decode().split())}

    def encode(self, ids: list[list[int]]) -> Any:
        """Unit vectors, float32 [texts, dimension]."""
        import numpy as np

        self.fill([(token, i, s, True) for s, row in enumerate(ids) for i, token in enumerate(row)])
        code = self.lib.llama_encode(self.context, self.batch)
        if code:
            raise RuntimeError(f"llama_encode gave {code}")
        rows = [self.lib.llama_get_embeddings_seq(self.context, s) for s in range(len(ids))]
        vectors = np.stack([np.ctypeslib.as_array(row, (self.width,)) for row in rows])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def embed(self, texts: list[str]) -> Any:
        import numpy as np

        ids = [encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts)]
        made, start = [], 0
        while start < len(ids):
            end, tokens = start, 0
            while end < len(ids) and end - start < SEQUENCES and tokens + len(ids[end]) <= BATCH:
                tokens += len(ids[end])
                end += 1
            made.append(self.encode(ids[start:end]))
            start = end
        return np.concatenate(made)

    def run(self, items: list[tuple[int, int, int, bool]]) -> None:
        """One step of (token, position, sequence, wanted); wanted tokens get logits."""
        self.fill(items)
        code = self.lib.llama_decode(self.context, self.batch)
        if code:
            raise RuntimeError(f"llama_decode gave {code}")

    def fill(self, items: list[tuple[int, int, int, bool]]) -> None:
        batch = self.batch
        batch.n_tokens = len(items)
        for i, (token, position, sequence, wanted) in enumerate(items):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence

    def together(self, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        """Greedy tokens of every prompt [prompts][tokens]: prompts one after another, then all together."""
        self.lib.llama_memory_clear(self.memory, True)
        last = []
        for sequence, prompt in enumerate(prompts):
            self.run([(token, i, sequence, i == len(prompt) - 1) for i, token in enumerate(prompt)])
            last.append(self.lib.llama_sampler_sample(self.sampler, self.context, -1))
        made = [[token] for token in last]
        for step in range(tokens - 1):
            self.run([(token, len(prompts[s]) + step, s, True) for s, token in enumerate(last)])
            last = [self.lib.llama_sampler_sample(self.sampler, self.context, s) for s in range(len(prompts))]
            for tokens_of, token in zip(made, last):
                tokens_of.append(token)
        return made

    def decode(self, prompt: list[int], tokens: int) -> list[int]:
        return self.together([prompt], tokens)[0]

    def prefill(self, prompt: list[int]) -> list[int]:
        return self.together([prompt], 1)[0]

    def parallel(self, prompts: list[list[int]], tokens: int) -> list[int]:
        return self.together(prompts, tokens)[0]
