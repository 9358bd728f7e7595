"""ONNX Runtime: the fused f32 model, and the same with dynamic int8 products, both from benchmarks/peers/export.py."""

import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import _padded

NAME = "ONNX Runtime"
PACKAGES = {"onnxruntime": "onnxruntime", "tokenizers": "tokenizers", "numpy": "numpy"}
SETTINGS = {"embed": ["f32 fused", "int8 fused"]}
FILES = {"f32 fused": "fused.onnx", "int8 fused": "int8.onnx"}
BATCH = 32


class Peer:
    def load(self, task: str, model: str, threads: int, setting: str, context: int, files: str) -> dict[str, Any]:
        import onnxruntime

        path = os.path.join(files, FILES[setting])
        if not os.path.isfile(path):
            raise ValueError(f"no {path}; make it with benchmarks/peers/export.py and give its folder as --files")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.types = {one.name: "int32" if "int32" in one.type else "int64" for one in self.session.get_inputs()}
        self.tokenizer = _padded.tokenizer_of(model)
        return {"about": f"{setting}, batches of {BATCH}"}

    def run(self, ids: list[list[int]]) -> Any:
        tokens, mask = _padded.padded(ids)
        given = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": 0 * tokens}
        feed = {name: given[name].astype(kind) for name, kind in self.types.items()}
        return _padded.pooled(self.session.run(None, feed)[0], mask)

    def embed(self, texts: list[str]) -> Any:
        return _padded.embed(self.tokenizer, texts, BATCH, self.run)
