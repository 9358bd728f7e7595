"""An embedder of two lines: a text's vector is drawn from its hash, so that tests need no model."""

import hashlib

import numpy as np

from weft.embed.results import Embedded


class FakeEmbedder:
    document_prompt_name = "document"

    def __init__(self, dimension=16, fingerprint="weft2:" + "0" * 64, drift=0.0):
        self.dimension, self.drift = dimension, drift
        self.info = {"fingerprint": fingerprint, "similarity": "cosine"}

    def encode_document(self, texts, **options):
        seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") for text in texts]
        made = np.stack([np.random.default_rng(seed).standard_normal(self.dimension) for seed in seeds])
        made[:, 0] += self.drift
        return made.astype(np.float32)

    def embed(self, texts, adapter="", **options):
        made = self.encode_document([texts] if isinstance(texts, str) else texts)
        count = np.ones(len(made), np.int32)
        return Embedded(made, count, count, count, lambda: self.info["fingerprint"] + adapter)
