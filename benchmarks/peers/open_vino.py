"""OpenVINO: MiniLM from the exported ONNX file in f32, f16 and bf16, one request or two streams; a causal model from
its own stateful export with int4 or int8 weights (benchmarks/peers/export.py)."""

import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import _padded

NAME = "OpenVINO"
PACKAGES = {"openvino": "openvino", "tokenizers": "tokenizers", "numpy": "numpy"}
SETTINGS = {
    "embed": ["f32", "f32 two streams", "f16", "f16 two streams", "bf16", "bf16 two streams"],
    "generate": ["int4 f32", "int4 bf16"],
}
BATCH = 32


class Peer:
    def load(self, task: str, model: str, threads: int, setting: str, context: int, files: str) -> dict[str, Any]:
        import openvino

        precision = next(name for name in ("f32", "f16", "bf16") if name in setting.split())
        hint = "THROUGHPUT" if "streams" in setting else "LATENCY"
        config = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": hint}
        if "streams" in setting:
            if threads < 2:
                raise ValueError("two streams need two threads")
            config["NUM_STREAMS"] = 2
        path = os.path.join(files, "model.onnx" if task == "embed" else "openvino_int4/openvino_model.xml")
        if not os.path.isfile(path):
            raise ValueError(f"no {path}; make it with benchmarks/peers/export.py and give its folder as --files")
        self.model = openvino.Core().compile_model(path, "CPU", config)
        self.names = {name for one in self.model.inputs for name in one.names}
        self.queue = openvino.AsyncInferQueue(self.model) if "streams" in setting else None
        self.request = self.model.create_infer_request()
        self.tokenizer = _padded.tokenizer_of(model) if task == "embed" else None
        streams = self.model.get_property("NUM_STREAMS")
        hint = self.model.get_property("INFERENCE_PRECISION_HINT")
        return {"about": f"{streams} streams, {hint.get_type_name()}"}

    def feed(self, ids: list[list[int]]) -> tuple[dict[str, Any], Any]:
        tokens, mask = _padded.padded(ids)
        given = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": 0 * tokens}
        return {name: value for name, value in given.items() if name in self.names}, mask

    def run(self, ids: list[list[int]]) -> Any:
        feed, mask = self.feed(ids)
        self.request.infer(feed, share_inputs=True)
        return _padded.pooled(self.request.get_output_tensor(0).data, mask)

    def embed(self, texts: list[str]) -> Any:
        if self.queue is None or len(texts) == 1:
            return _padded.embed(self.tokenizer, texts, BATCH, self.run)
        import numpy as np

        found = {}

        def keep(request: Any, given: Any) -> None:
            places, mask = given
            found.update(zip(places, _padded.pooled(request.get_output_tensor(0).data, mask)))

        self.queue.set_callback(keep)
        for places, ids in _padded.batches(self.tokenizer, texts, BATCH):
            feed, mask = self.feed(ids)
            self.queue.start_async(feed, (places, mask))
        self.queue.wait_all()
        return np.stack([found[i] for i in range(len(texts))])

    def step(self, ids: Any, past: int) -> Any:
        """The best next token of each sequence [sequences], after `ids` int64 [sequences, new]."""
        import numpy as np

        count, new = ids.shape
        given = {
            "input_ids": ids,
            "attention_mask": np.ones((count, past + new), np.int64),
            "position_ids": np.tile(np.arange(past, past + new, dtype=np.int64), (count, 1)),
            "beam_idx": np.arange(count, dtype=np.int32),
        }
        self.request.infer({name: value for name, value in given.items() if name in self.names}, share_inputs=True)
        return self.request.get_output_tensor(0).data[:, -1].argmax(-1)

    def together(self, prompts: list[list[int]], tokens: int) -> list[int]:
        import numpy as np

        self.request.reset_state()
        made = [self.step(np.array(prompts, np.int64), 0)]
        for i in range(tokens - 1):
            made.append(self.step(made[-1].reshape(-1, 1).astype(np.int64), len(prompts[0]) + i))
        return [int(step[0]) for step in made]

    def decode(self, prompt: list[int], tokens: int) -> list[int]:
        return self.together([prompt], tokens)

    def prefill(self, prompt: list[int]) -> list[int]:
        return self.together([prompt], 1)

    def parallel(self, prompts: list[list[int]], tokens: int) -> list[int]:
        return self.together(prompts, tokens)
