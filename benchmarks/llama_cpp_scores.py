"""Files that weft writes, scored by llama.cpp and by weft: perplexity of the same tokens, in windows of 512.

    PYTHONPATH=. python benchmarks/llama_cpp_scores.py MODEL TEXT --types q8_0 q4_0 --tokens 1024

Needs xllamacpp. Prints a line of JSON for each type: weft's perplexity in f32 and by default, llama.cpp's,
and how far apart they are. llama.cpp rounds activations to int8 and sums in another order.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "golden" / "generate"))
sys.path.insert(0, str(HERE.parent / "tests" / "golden"))
from make_llama_cpp import WINDOW, Llama, perplexity  # noqa: E402

from weft.quantise import Quantising  # noqa: E402
from weft.quantise.plan import FILE_TYPES  # noqa: E402
from weft.runtime import Decoder, open_checkpoint  # noqa: E402


def own_perplexity(path: Path, ids: list[int], compute: str | None, threads: int) -> float:
    more = {} if compute is None else {"compute": compute, "kv_dtype": "f32"}
    decoder = Decoder(open_checkpoint(path), context=WINDOW, threads=threads, **more)
    loss, count = 0.0, 0
    for first in range(0, len(ids), WINDOW):
        window = np.asarray(ids[first : first + WINDOW], np.int32)
        wide = decoder.logits(window).astype(np.float64)
        wide -= wide.max(axis=1, keepdims=True)
        rows = np.arange(len(window) - 1)
        loss -= float((wide[rows, window[1:]] - np.log(np.exp(wide[rows]).sum(axis=1))).sum())
        count += len(rows)
    return float(np.exp(loss / count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--types", nargs="+", default=list(FILE_TYPES))
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    text = given.text.read_text(encoding="utf-8")[: given.tokens * 12]
    with tempfile.TemporaryDirectory() as folder:
        for kind in given.types:
            path = Path(folder) / f"{kind}.gguf"
            list(Quantising(given.model, path, type=kind, threads=given.threads))
            llama = Llama(str(path))
            ids = llama.tokenize(text)[: given.tokens]
            same = ids == open_checkpoint(path).tokenizer().encode(text, parse_special=True)[: given.tokens]
            found = {
                "weft_f32": own_perplexity(path, ids, "f32", given.threads),
                "weft": own_perplexity(path, ids, None, given.threads),
                "llama_cpp": perplexity(llama, ids),
            }
            apart = {f"{name}_apart": found["llama_cpp"] / found[name] - 1 for name in ("weft_f32", "weft")}
            size = path.stat().st_size
            print(json.dumps({"type": kind, "same_ids": same, "bytes": size, **found, **apart}), flush=True)
            path.unlink()


if __name__ == "__main__":
    main()
