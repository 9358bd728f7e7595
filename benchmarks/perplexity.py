"""The perplexity of GGUF files by weft and by llama.cpp, over the same windows of the same text.

    python benchmarks/perplexity.py TEXT FILE.gguf... --peer-python PYTHON --tokens 16384

Prints a line of JSON for each file: both perplexities and how far weft's is from llama.cpp's, in percent. The windows
are llama.cpp's: side by side, the second half of each is scored (`weft eval ppl --llama`). llama.cpp tokenizes by
itself; that it finds the same tokens is part of the line. Keys and values are f32 and flash attention is off. PYTHON
needs xllamacpp, which carries llama.cpp, gguf and numpy.

`--program llama-perplexity` asks llama.cpp's own program instead, which is quicker where it was built for this machine.
`--widen` tells a difference of files from one of arithmetic: PYTHON's gguf widens FILE.gguf to f32, so that nothing is
rounded while it is computed; `same_values` says whether weft reads the same bits, and both engines score these values.

`--type q4_k_m q8_0` first writes FILE.gguf with these types by `weft quantize`, into a folder that goes at the end, and
measures what was written.
"""

import argparse
import ctypes
import hashlib
import json
import re
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
    """In the peer's interpreter: what llama.cpp finds for one file, or that file widened to f32."""
    sys.path.insert(0, str(ROOT / "tests" / "golden" / "generate"))
    from make_llama_cpp import Llama, widen

    if given.widened:
        widen(given.files[0], given.widened)
        print(json.dumps({"widened": given.widened}))
        return
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


def told(given: argparse.Namespace, path: Path) -> dict[str, Any]:
    """What llama.cpp's own program prints."""
    command = [given.program, "-m", str(path), "-f", given.text, "-c", str(given.window), "-t", str(given.threads)]
    command += ["--chunks", str(given.tokens // given.window), "-fa", "off", "-ctk", "f32", "-ctv", "f32"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Final estimate: PPL = ([0-9.]+)", done.stdout + done.stderr)
    return {"perplexity": float(found[1])} if found else {"failed": done.stderr.strip().splitlines()[-1:]}


def asked(given: argparse.Namespace, path: Path, *more: str) -> dict[str, Any]:
    if given.program and not more:
        return told(given, path)
    sizes = ["--tokens", str(given.tokens), "--window", str(given.window)]
    command = [given.peer_python, __file__, given.text, str(path), "--peer", *sizes, *more]
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


def same_values(a: Path, b: Path) -> bool:
    """Whether all tensors of two files have the same bits in f32."""
    from weft.weights import open_gguf

    with open_gguf(a) as one, open_gguf(b) as other:
        pairs = ((one[name].numpy(), other[name].numpy()) for name in one.tensors)
        bits = (
            (np.asarray(x, np.float32).view(np.uint32), np.asarray(y, np.float32).view(np.uint32)) for x, y in pairs
        )
        return one.tensors.keys() == other.tensors.keys() and all(np.array_equal(x, y) for x, y in bits)


def scored(given: argparse.Namespace, path: Path, folder: Path) -> dict[str, Any]:
    """The line of a file."""
    from weft.measure import Perplexity, summed

    options = {"window": given.window, "tokens": given.tokens, "llama": True, "threads": given.threads}
    measuring = Perplexity(path, Path(given.text), compute=given.compute, **options)
    ours, theirs = summed(measuring), asked(given, path)
    line = {"file": path.name, "bytes": path.stat().st_size, "weft": ours.perplexity, "targets": ours.targets}
    line |= {"compute": measuring.decoder.info["compute"], "llama.cpp": theirs.get("perplexity")}
    if "perplexity" in theirs:
        line["percent"] = 100 * (ours.perplexity / theirs["perplexity"] - 1)
    if "ids" in theirs:
        line["same_tokens"] = theirs["ids"] == digest(measuring.ids)
    if given.widen:
        wide = folder / "widened.gguf"
        asked(given, path, "--widened", str(wide))
        exact = summed(Perplexity(path, Path(given.text), compute="f32", kv_dtype="f32", **options)).perplexity
        line |= {"same_values": same_values(path, wide), "weft_f32": exact}
        line["llama.cpp_f32"] = asked(given, wide).get("perplexity")
        line["percent_f32"] = 100 * (exact / (line["llama.cpp_f32"] or np.nan) - 1)
        wide.unlink()
    return {**line, **({"failed": theirs["failed"]} if "failed" in theirs else {})}


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
    parser.add_argument("--program", help="llama-perplexity, asked instead of PYTHON's llama.cpp")
    parser.add_argument("--widen", action="store_true", help="score the widened values, too")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--widened", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peer:
        peer(given)
        return
    with tempfile.TemporaryDirectory() as folder:
        for path in files(given, Path(folder)):
            print(json.dumps(scored(given, path, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
