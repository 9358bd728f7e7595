"""Make written-adapters.npz: the logits that peft and transformers compute in float32 with the adapters that weft
writes (tests/train/written_cases.py), and the hashes of these.

python tests/golden/train/make_written_adapters.py [NAME ...]    (needs torch, transformers and peft)
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import peft
import torch
import transformers
from safetensors.torch import load_file

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), *(str(HERE.parents[1] / part) for part in ("train", "models")), str(HERE.parents[2])]
import tiny  # noqa: E402
import written_cases  # noqa: E402
from made_with import note_versions  # noqa: E402

from weft.runtime import Decoder, open_checkpoint  # noqa: E402


def run(name: str, folder: Path) -> tuple[np.ndarray, str]:
    cfg = tiny.CONFIGS[written_cases.CASES[name][0]]
    base, adapter = written_cases.write(folder, name)
    options = {"attn_implementation": "eager", "experts_implementation": "eager", "dtype": torch.float32}
    model = transformers.AutoModelForCausalLM.from_pretrained(base, **options).eval()
    ids = torch.from_numpy(tiny.token_ids(cfg, written_cases.TOKENS).astype(np.int64))[None]
    with torch.no_grad():
        before = model(input_ids=ids).logits[0].clone()
    model = peft.PeftModel.from_pretrained(model, adapter).eval().float()
    model.save_pretrained(folder / "saved")
    given, saved = (load_file(path / "adapter_model.safetensors") for path in (adapter, folder / "saved"))
    assert given.keys() == saved.keys(), (name, sorted(given.keys() ^ saved.keys())[:4])
    assert all(torch.equal(given[key], saved[key]) for key in given), name
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0]
    decoder = Decoder(open_checkpoint(base), compute="f32", kv_dtype="f32")
    found = decoder.logits(ids[0].numpy().astype(np.int32), adapter=decoder.adapters.load("a", adapter))
    off, change = np.abs(found - logits.numpy()).max(), float((logits - before).abs().max())
    print(f"{name}: {len(given) // 2} modules change logits by {change:.2f}; weft's are off by {off:.1e}", flush=True)
    return logits.numpy().astype(np.float32), written_cases.digest(adapter)


def main() -> None:
    path = HERE / "written-adapters.npz"
    arrays = dict(np.load(path)) if path.exists() and sys.argv[1:] else {}
    for name in sys.argv[1:] or written_cases.CASES:
        with tempfile.TemporaryDirectory() as folder:
            logits, digest = run(name, Path(folder))
        arrays |= {name: logits, f"digest of {name}": np.asarray(digest)}
    np.savez_compressed(path, **arrays)
    note_versions(path, "peft", "transformers", "torch", "numpy")


main()
