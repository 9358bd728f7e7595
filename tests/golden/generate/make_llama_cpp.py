"""Make smollm2.json and qwen2.5-coder.json: what llama.cpp computes for these models.

    python make_llama_cpp.py smollm2 SmolLM2-135M-Instruct.Q4_1.gguf WIDENED.gguf wiki.test.raw
    python make_llama_cpp.py qwen2.5-coder qwen2.5-coder-1.5b-instruct-q4_k_m.gguf WIDENED.gguf wiki.test.raw

Needs the packages xllamacpp, which carries llama.cpp, and gguf. WIDENED.gguf is made when it is not there.

For each prompt: its ids, 64 greedy tokens, and at each step the gap between the two best logits; and the perplexity of
the text's first 8,192 tokens in windows of 512, every token of a window but the first scored. Keys and values are kept
in f32 and flash attention is off.

All of it twice. "int8" is the file as it is: llama.cpp rounds activations to int8 before each product. That is chaotic:
one activation that rounds the other way in a low layer, for a difference of 1e-7, moves every later layer by the full
rounding noise (about 0.2 in a logit of SmolLM2), so no two builds agree for long. "f32" is the same weights' values
written as f32 (WIDENED.gguf), where nothing is rounded and two right implementations must agree.
"""

import ctypes
import json
import sys
from pathlib import Path

import gguf
import numpy as np
import xllamacpp.xllamacpp as wheel

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from made_with import note_versions  # noqa: E402

TOKENS, WINDOW, SCORED = 64, 512, 8192


def chat(question: str) -> str:
    """A question as Qwen's chat template writes it."""
    system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


PROMPTS = {
    "smollm2": [
        "Once upon a time",
        "The capital of France is",
        "def fibonacci(n):",
        "Water boils at a temperature of",
        "<|im_start|>user\nWrite a haiku about the sea.<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\nExplain what a prime number is in one sentence.<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\nName three fruits.<|im_end|>\n<|im_start|>assistant\n",
        "The three most important things in life are",
        "In 1969, humans first",
        "Dear Sir or Madam,\n\nI am writing to",
        "import numpy as np\n\n",
        "Q: What is the largest planet in the solar system?\nA:",
        "The history of the Roman Empire begins",
        "To bake bread you need flour, water,",
        "1, 2, 3, 4, 5,",
        "La vie est belle et",
        "Photosynthesis is the process by which",
        "She opened the door and saw",
        "<|im_start|>system\nYou are a pirate.<|im_end|>\n<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n",
        '{"name": "Alice", "age":',
    ],
    "qwen2.5-coder": [
        'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
        "import numpy as np\n\ndef softmax(x):\n",
        "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
        "#include <stdio.h>\n\nint main(void) {\n",
        "fn is_prime(n: u64) -> bool {\n",
        "SELECT name, COUNT(*) FROM orders\n",
        "function debounce(fn, delay) {\n",
        "# Read a CSV file and print the mean of each column\nimport csv\n",
        "def quicksort(items):\n",
        'package main\n\nimport "fmt"\n\nfunc main() {\n',
        "def binary_search(items, target):\n",
        "The time complexity of merge sort is",
        "A hash table is a data structure that",
        chat("Write a Python function that reverses a linked list."),
        chat("Explain what a race condition is in one paragraph."),
        chat("Write a regular expression for an ISO 8601 date, and explain it."),
        chat("What does `git rebase -i` do?"),
        chat("Write a bash one-liner that counts the lines of all .py files below the current folder."),
        chat("Translate this to Rust: for i in range(10): print(i * i)"),
        chat("Wie sortiert man in Python ein Dictionary nach seinen Werten?"),
    ],
}


class Params(ctypes.Structure):
    """llama_context_params or llama_model_params of this build; longer than either, fields by offset."""

    _fields_ = [("raw", ctypes.c_uint8 * 512)]

    def put(self, offset: int, value: int) -> None:
        ctypes.c_int32.from_buffer(self.raw, offset).value = value


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


class Llama:
    def __init__(self, path: str) -> None:
        lib = self.lib = ctypes.CDLL(wheel.__file__)
        for name in ("llama_model_default_params", "llama_context_default_params"):
            getattr(lib, name).restype = Params
        for name in (
            "llama_model_load_from_file",
            "llama_init_from_model",
            "llama_model_get_vocab",
            "llama_get_memory",
        ):
            getattr(lib, name).restype = ctypes.c_void_p
        lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, Params]
        lib.llama_init_from_model.argtypes = [ctypes.c_void_p, Params]
        lib.llama_model_get_vocab.argtypes = lib.llama_get_memory.argtypes = [ctypes.c_void_p]
        lib.llama_memory_clear.argtypes = [ctypes.c_void_p, ctypes.c_bool]
        lib.llama_vocab_n_tokens.argtypes = [ctypes.c_void_p]
        lib.llama_batch_init.restype = Batch
        lib.llama_decode.argtypes = [ctypes.c_void_p, Batch]
        lib.llama_get_logits.restype = ctypes.POINTER(ctypes.c_float)
        lib.llama_get_logits.argtypes = [ctypes.c_void_p]
        lib.llama_tokenize.argtypes = [
            ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_int32), ctypes.c_int32,
            ctypes.c_bool, ctypes.c_bool,
        ]  # fmt: skip
        self.log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
        lib.llama_log_set(self.log, None)
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
        params = lib.llama_context_default_params()
        for offset, value in ((0, 2048), (28, 1), (32, 1), (52, 0), (104, 0), (108, 0)):
            params.put(offset, value)  # n_ctx, n_threads, n_threads_batch, flash_attn_type off, type_k f32, type_v f32
        self.context = lib.llama_init_from_model(self.model, params)
        self.vocab = lib.llama_model_get_vocab(self.model)
        self.size = lib.llama_vocab_n_tokens(self.vocab)
        self.batch = lib.llama_batch_init(2048, 0, 1)

    def tokenize(self, text: str) -> list[int]:
        raw = text.encode()
        room = (ctypes.c_int32 * (len(raw) + 8))()
        count = self.lib.llama_tokenize(self.vocab, raw, len(raw), room, len(room), True, True)
        return list(room[:count])

    def clear(self) -> None:
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def decode(self, tokens: list[int], start: int, every: bool) -> np.ndarray:
        """Logits [len(tokens) or 1, vocab]."""
        self.batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            self.batch.token[i], self.batch.pos[i] = token, start + i
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, 0
            self.batch.logits[i] = every or i + 1 == len(tokens)
        assert self.lib.llama_decode(self.context, self.batch) == 0
        rows = len(tokens) if every else 1
        return np.ctypeslib.as_array(self.lib.llama_get_logits(self.context), (rows, self.size)).copy()


def greedy(llama: Llama, ids: list[int]) -> tuple[list[int], list[float]]:
    llama.clear()
    logits, out, gaps = llama.decode(ids, 0, False)[0], [], []
    for i in range(TOKENS):
        best = np.partition(logits, -2)[-2:]
        gaps.append(round(float(best[1] - best[0]), 4))
        out.append(int(logits.argmax()))
        if i + 1 < TOKENS:
            logits = llama.decode([out[-1]], len(ids) + i, False)[0]
    return out, gaps


def perplexity(llama: Llama, ids: list[int]) -> float:
    total, count = 0.0, 0
    for first in range(0, len(ids), WINDOW):
        window = ids[first : first + WINDOW]
        llama.clear()
        logits = llama.decode(window, 0, True).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        total -= float(logprobs[np.arange(len(window) - 1), window[1:]].sum())
        count += len(window) - 1
    return float(np.exp(total / count))


def collect(path: str, prompts: list[str], text: str) -> dict:
    llama = Llama(path)
    cases = []
    for prompt in prompts:
        ids = llama.tokenize(prompt)
        tokens, gaps = greedy(llama, ids)
        cases.append({"prompt": prompt, "ids": ids, "tokens": tokens, "gaps": gaps})
        print(".", end="", flush=True)
    ids = llama.tokenize(text)[:SCORED]
    scored = {"window": WINDOW, "tokens": len(ids), "first_ids": ids[:16], "value": perplexity(llama, ids)}
    print(scored["value"])
    return {"cases": cases, "perplexity": scored}


def widen(source: str, target: str) -> None:
    """The same values in f32; metadata as it is."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.get_field("general.architecture").contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), 4 * int(tensor.n_elements))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        writer.write_tensor_data(gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.close()


def main() -> None:
    name, path, widened = sys.argv[1:4]
    text = Path(sys.argv[4]).read_text(encoding="utf-8")
    if not Path(widened).exists():
        widen(path, widened)
    found = {
        "model": Path(path).name,
        "int8": collect(path, PROMPTS[name], text),
        "f32": collect(widened, PROMPTS[name], text),
    }
    (HERE / f"{name}.json").write_text(json.dumps(found, indent=None, separators=(",", ":")) + "\n")
    note_versions(HERE / f"{name}.json", "xllamacpp", "gguf", "numpy")


if __name__ == "__main__":
    main()
