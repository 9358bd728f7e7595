"""The perplexity of GGUF files by weft and by llama.cpp, over the same windows of the same text.

    python benchmarks/perplexity.py TEXT FILE.gguf... --peer-python PYTHON --tokens 16384

Prints a line of JSON for each file: both perplexities and how far weft's is from llama.cpp's, in percent. The windows
are llama.cpp's: side by side, the second half of each is scored (`weft eval ppl --llama`). llama.cpp tokenizes by
itself; that it finds the same tokens is part of the line. Keys and values are f32 and flash attention is off. PYTHON
needs xllamacpp, which carries llama.cpp, gguf and numpy.

`--type q4_k_m q8_0` first writes FILE.gguf with these types by `weft quantize`, into a folder that goes at the end, and
measures what was written.
"""

import argparse
import ctypes
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]


def digest(ids: Any) -> str:
    return hashlib.sha256(np.asarray(ids, np.int32).tobytes()).hexdigest()[:16]


def peer(given: argparse.Namespace) -> None:
    """In the peer's interpreter: what llama.cpp finds for one file."""
    sys.path.insert(0, str(ROOT / "tests" / "golden" / "generate"))
    from make_llama_cpp import Llama

    llama = Llama(given.files[0])
    raw = Path(given.text).read_bytes()
    room = (ctypes.c_int32 * (len(raw) + 8))()
    count = llama.lib.llama_tokenize(llama.vocab, raw, len(raw), room, len(room), True, False)
    llama.lib.llama_vocab_get_add_bos.argtypes = llama.lib.llama_vocab_bos.argtypes = [ctypes.c_void_p]
    llama.lib.llama_vocab_get_add_bos.restype = ctypes.c_bool
    bos = llama.lib.llama_vocab_bos(llama.vocab) if llama.lib.llama_vocab_get_add_bos(llama.vocab) else None
    ids, total, scored = list(room[:count])[: given.tokens], 0.0, 0
    for first in range(0, len(ids) - given.window + 1, given.window):
        window, half = ids[first : first + given.window], given.window // 2
        llama.clear()
        read = window if bos is None else [bos, *window[1:]]
        logits = llama.decode(read, 0, True)[half:-1].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        chances = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        total -= float(chances[np.arange(len(logits)), window[half + 1 :]].sum())
        scored += len(logits)
    print(json.dumps({"perplexity": float(np.exp(total / scored)), "targets": scored, "ids": digest(ids)}))


def asked(given: argparse.Namespace, path: Path) -> dict[str, Any]:
    sizes = ["--tokens", str(given.tokens), "--window", str(given.window)]
    command = [given.peer_python, __file__, given.text, str(path), "--peer", *sizes]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1:]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def files(given: argparse.Namespace, folder: Path) -> Iterator[Path]:
    """The files as they are, or as weft writes them with each type."""
    from weft.quantise import Quantising

    for name in given.files:
        if not given.type:
            yield Path(name)
        for kind in given.type:
            made = folder / f"{Path(name).stem}-{kind}.gguf"
            for _ in Quantising(name, made, type=kind, threads=given.threads):
                pass
            yield made
            made.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compute")
    parser.add_argument("--type", nargs="*", default=[])
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peer:
        peer(given)
        return
    from weft.measure import Perplexity, summed

    with tempfile.TemporaryDirectory() as folder:
        for path in files(given, Path(folder)):
            options = {"window": given.window, "tokens": given.tokens, "llama": True}
            measuring = Perplexity(path, Path(given.text), threads=given.threads, compute=given.compute, **options)
            ours, theirs = summed(measuring), asked(given, path)
            line = {"file": path.name, "bytes": path.stat().st_size, "weft": ours.perplexity, "targets": ours.targets}
            line |= {"compute": measuring.decoder.info["compute"], "llama.cpp": theirs.get("perplexity")}
            if "perplexity" in theirs:
                line["percent"] = 100 * (ours.perplexity / theirs["perplexity"] - 1)
                line["same_tokens"] = theirs["ids"] == digest(measuring.ids)
            print(json.dumps({**line, **({"failed": theirs["failed"]} if "failed" in theirs else {})}), flush=True)


if __name__ == "__main__":
    main()
