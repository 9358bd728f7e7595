"""weft beside transformers.js (onnxruntime-web) and wllama (llama.cpp) in headless Chromium, in turns, and natively.

    npm install --prefix PEERS @huggingface/transformers onnxruntime-web @wllama/wllama
    weft export all-MiniLM-L6-v2 -o FILES/minilm.weft --compute f32
    weft export smollm2-135m-instruct -o FILES/smollm2.weft --compute int8
    python benchmarks/browser.py --npm PEERS/node_modules --files FILES --rounds 5

FILES also has what the peers read: `minilm.gguf` (f32) and `onnx/minilm/onnx/model.onnx` of `peers/export.py`,
`smollm2.gguf` (the file that was exported), `onnx/smollm2/onnx/model_quantized.onnx` (the widened model through
onnxruntime-genai's builder, `-p fp32 -e cpu`, and `quantize_dynamic`; the last axis of keys and values is fixed to 64),
with the tokenizers and configurations beside. Everything is served on loopback, isolated. Rates:
tokens of texts by the time of a call, and tokens after the first one by the time between the first and the last.
Bound: texts by arithmetic, tokens by memory. The downloads are those of one load, not compressed.
"""

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
ENGINES = ("weft", "transformers", "wllama")
SENTENCE = "The shuttle carries the weft thread through the warp, and the reed beats it against the cloth. "
TEXTS = [f"{i}: {SENTENCE * 2}It took {i + 3} days." for i in range(8)]
PROMPT = "The history of weaving begins"
TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm", ".json": "application/json"}
PAGE = """<!doctype html><title>%s</title><link rel=icon href=data:,><script type=importmap>{"imports": {
"onnxruntime-web/webgpu": "/npm/onnxruntime-web/dist/ort.wasm.bundle.min.mjs",
"onnxruntime-common": "/npm/onnxruntime-common/dist/esm/index.js",
"@huggingface/transformers": "/npm/@huggingface/transformers/dist/transformers.web.js",
"@huggingface/jinja": "/npm/@huggingface/jinja/dist/index.js",
"@huggingface/tokenizers": "/npm/@huggingface/tokenizers/dist/tokenizers.mjs",
"@wllama/wllama": "/npm/@wllama/wllama/esm/index.js"}}</script>"""
LOAD = """async ([engine, task, threads]) => {
  globalThis.engine = await import(`/engines/${engine}.js`);
  return globalThis.engine.load(task, threads);
}"""
EMBED = """async (texts) => {
  const began = performance.now(), found = await engine.embed(texts);
  return [performance.now() - began, Array.from(found[0])];
}"""
HEAP = "async () => (await performance.measureUserAgentSpecificMemory()).bytes"


class Site:
    """Folders over HTTP, isolated; `sent` are the bytes of bodies since it was set to 0."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self.sent = 0
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                top, _, rest = self.path.partition("?")[0].lstrip("/").partition("/")
                file = folders.get(top, ROOT / "nothing") / rest
                body = (PAGE % rest).encode() if top == "page" else file.read_bytes() if file.is_file() else None
                if body is None:
                    return self.send_error(404)
                self.send_response(200)
                self.send_header("content-type", "text/html" if top == "page" else TYPES.get(file.suffix, "text/plain"))
                self.send_header("cross-origin-opener-policy", "same-origin")
                self.send_header("cross-origin-embedder-policy", "require-corp")
                self.send_header("content-length", str(len(body)))
                self.send_header("cache-control", "no-store")
                self.end_headers()
                self.wfile.write(body)
                site.sent += len(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()


class Tab:
    """An engine in a page of its own, with the model of a task."""

    def __init__(self, browser: Any, site: Site, name: str, task: str, threads: int) -> None:
        self.page = browser.new_context().new_page()
        self.page.set_default_timeout(600_000)
        self.page.goto(f"{site.url}/page/{name}")
        site.sent, began = 0, time.perf_counter()
        self.says = self.page.evaluate(LOAD, [name, task, threads])
        self.load_s, self.download = time.perf_counter() - began, site.sent

    def heap(self) -> int:
        return int(self.page.evaluate(HEAP))

    def embed(self, tokens: int) -> tuple[float, list[float]]:
        milliseconds, vector = self.page.evaluate(EMBED, TEXTS)
        return tokens / milliseconds * 1000, vector

    def decode(self, count: int) -> tuple[float, str]:
        done = self.page.evaluate("([prompt, count]) => engine.decode(prompt, count)", [PROMPT, count])
        times = done["times"]
        return (len(times) - 1) / (times[-1] - times[0]) * 1000, done["text"]

    def close(self) -> None:
        self.page.context.close()


class Native:
    """Python at an instruction-set level, for the same work."""

    def __init__(self, level: str, task: str, threads: int) -> None:
        os.environ["WEFT_ISA"] = level
        import weft

        self.load_s, self.download, self.says = 0.0, 0, level
        if task == "embed":
            self.model: Any = weft.Embedder("all-MiniLM-L6-v2", threads=threads, compute="f32", cache=None)
        else:
            self.model = weft.load("smollm2-135m-instruct", threads=threads, compute="int8", draft="none", context=512)
        os.environ.pop("WEFT_ISA")

    def heap(self) -> int:
        return 0

    def embed(self, tokens: int) -> tuple[float, list[float]]:
        began = time.perf_counter()
        vectors = self.model.encode(TEXTS)
        return tokens / (time.perf_counter() - began), list(map(float, vectors[0]))

    def decode(self, count: int) -> tuple[float, str]:
        times, pieces = [], []
        for token in self.model.stream(PROMPT, max_tokens=count):
            times.append(time.perf_counter())
            pieces.append(token.text)
        return (len(times) - 1) / (times[-1] - times[0]), "".join(pieces)

    def close(self) -> None:
        pass


def measure(task: str, threads: int, browser: Any, site: Site, options: argparse.Namespace) -> dict[str, Any]:
    from weft import Embedder

    tokens = (
        sum(len(ids) for ids in map(Embedder("all-MiniLM-L6-v2").tokenizer.encode, TEXTS)) if task == "embed" else 0
    )
    runners: dict[str, Any] = {name: Tab(browser, site, name, task, threads) for name in options.engines}
    runners |= {f"native {level}": Native(level, task, threads) for level in options.levels}
    rates: dict[str, list[float]] = {name: [] for name in runners}
    said: dict[str, Any] = {}
    for turn in range(options.rounds + 1):
        for name, runner in runners.items():
            rate, said[name] = runner.embed(tokens) if task == "embed" else runner.decode(options.tokens)
            if turn:  # the first one warms up
                rates[name].append(rate)
    rows = {}
    for name, runner in runners.items():
        found = rates[name]
        rows[name] = {
            "median": round(statistics.median(found), 1),
            "low": round(min(found), 1),
            "high": round(max(found), 1),
        }
        rows[name] |= {
            "load_s": round(runner.load_s, 2),
            "download": runner.download,
            "heap": runner.heap(),
            "says": runner.says,
        }
        if task == "embed":
            rows[name]["cosine"] = round(sum(a * b for a, b in zip(said[name], said[next(iter(said))], strict=True)), 6)
        else:
            rows[name]["text"] = said[name][:60]
        runner.close()
    return {"task": task, "threads": threads, "rows": rows}


def report(case: dict[str, Any]) -> None:
    print(f"{case['task']}, {case['threads']} threads: tokens/s", flush=True)
    first = next(iter(case["rows"].values()))
    for name, row in case["rows"].items():
        ratio = first["median"] / row["median"]
        print(
            f"  {name:16} {row['median']:8.1f} ({row['low']:.1f} to {row['high']:.1f})  weft {ratio:.2f} times"
            f"  download {row['download'] / 1e6:.1f} MB  heap {row['heap'] / 1e6:.0f} MB  load {row['load_s']:.1f} s"
            f"  {row.get('cosine', row.get('text'))!r}  {row['says']}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--npm", type=Path, required=True, metavar="FOLDER", help="node_modules with the peers")
    parser.add_argument("--files", type=Path, required=True, metavar="FOLDER", help="the models")
    parser.add_argument("--tasks", nargs="+", default=["embed", "decode"])
    parser.add_argument("--engines", nargs="+", default=list(ENGINES))
    parser.add_argument("--levels", nargs="*", default=[], help="of Python, such as scalar avx2")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", type=Path, help="append a line of JSON for each case")
    options = parser.parse_args()
    from browser import FLAGS  # tests/browser.py
    from playwright.sync_api import sync_playwright

    site = Site(
        {
            "weft": ROOT / "web" / "runtime",
            "engines": Path(__file__).parent / "browser",
            "npm": options.npm,
            "files": options.files,
        }
    )
    names = ("@huggingface/transformers", "onnxruntime-web", "@wllama/wllama")
    versions = {name: json.loads((options.npm / name / "package.json").read_text())["version"] for name in names}
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    machine = {"machine": model[1] if model else platform.machine(), "cores": os.cpu_count()}
    with sync_playwright() as playwright:
        flags = [*FLAGS, "--enable-blink-features=ForceEagerMeasureMemory"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        for task in options.tasks:
            for threads in options.threads:
                case = measure(task, threads, browser, site, options)
                report(case)
                about = {"benchmark": "browser", "chromium": browser.version, **versions, **machine}
                line = json.dumps({**about, "load": os.getloadavg()[0], **case})
                if options.save:
                    with options.save.open("a") as file:
                        file.write(line + "\n")


main()
