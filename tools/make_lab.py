"""Write the demonstration page with its models into a folder that any server of static files can host:

    python tools/make_lab.py FOLDER [SEARCH_MODEL [CHAT_MODEL]]

The page is web/lab, the runtime web/runtime with weft.wasm (`make wasm`), and the models are bundles of `weft export`.
The page compares their digests. A bundle that is there already is left as it is.
"""

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from weft.export import export  # noqa: E402

MODELS = {"search": ("all-MiniLM-L6-v2", "f32"), "chat": ("smollm2-135m-instruct", "int8")}
RUNTIME = (
    *("weft.js", "worker.js", "core.js", "loading.js", "thread.js", "gpu.js", "gpu-list.js", "gpu-weights.js"),
    *("weft.wasm", "weft-threads.wasm"),
)
SHARD_BYTES = 32 << 20  # a browser keeps or loses whole files


def write_page(folder: Path) -> None:
    """The page and the runtime, without models."""
    if not (ROOT / "web" / "runtime" / "weft.wasm").is_file():
        sys.exit("web/runtime/weft.wasm is not built: `make wasm` builds it")
    (folder / "runtime").mkdir(parents=True, exist_ok=True)
    for source in sorted((ROOT / "web" / "lab").iterdir()):
        if source.suffix != ".md":
            shutil.copyfile(source, folder / source.name)
    for name in RUNTIME:
        shutil.copyfile(ROOT / "web" / "runtime" / name, folder / "runtime" / name)


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    write_page(folder)
    for (name, (default, compute)), given in zip(MODELS.items(), [*sys.argv[2:], None, None], strict=False):
        if not (folder / "models" / name).exists():
            (folder / "models").mkdir(exist_ok=True)
            done = export(given or default, folder / "models" / name, compute=compute, shard_bytes=SHARD_BYTES)
            print(f"models/{name}: {given or default}, {done.nbytes / 1e6:.1f} MB, sha256 {done.digest}")
    print(f"{folder}: host it with `weft serve --lab {folder}`, or with any server of static files")


if __name__ == "__main__":
    main()
