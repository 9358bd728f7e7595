"""Make tiny-expert-adapters.npz: the logits that peft and transformers compute in float32 for the tiny adapters on
experts of tests/models/tiny_expert_adapters.py.

python tests/golden/adapters/make_expert_adapters.py    (needs torch, transformers and peft)

PEFT turns adapters of single experts into those of parameters when it loads them, for a transformers that holds all
experts together. The others it saves again, and must write the same tensors under the same names.
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
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "models"), str(HERE.parents[2])]
import tiny  # noqa: E402
import tiny_expert_adapters  # noqa: E402
from made_with import note_versions  # noqa: E402

TOKENS = 17


def run(name: str, folder: Path) -> np.ndarray:
    cfg = tiny.CONFIGS[tiny_expert_adapters.CASES[name][0]]
    base = tiny.write_folder(folder / "base", cfg)
    tiny_expert_adapters.write_case(folder / "given", name)
    options = {"attn_implementation": "eager", "dtype": torch.float32}
    model = transformers.AutoModelForCausalLM.from_pretrained(base, **options)
    ids = torch.from_numpy(tiny.token_ids(cfg, TOKENS).astype(np.int64))[None]
    with torch.no_grad():
        before = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0].clone()
    model = peft.PeftModel.from_pretrained(model, folder / "given").eval().float()
    if not name.endswith("-each"):
        model.save_pretrained(folder / "saved")
        given, saved = (load_file(folder / part / "adapter_model.safetensors") for part in ("given", "saved"))
        assert given.keys() == saved.keys(), (name, sorted(given.keys() ^ saved.keys()))
        assert all(torch.equal(given[key], saved[key].float()) for key in given), name
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    print(name, "changes logits by", float((logits - before).abs().max()))
    return logits.numpy().astype(np.float32)


def main() -> None:
    arrays = {}
    for name in tiny_expert_adapters.CASES:
        with tempfile.TemporaryDirectory() as folder:
            arrays[name] = run(name, Path(folder))
    np.savez_compressed(HERE / "tiny-expert-adapters.npz", **arrays)
    note_versions(HERE / "tiny-expert-adapters.npz", "peft", "transformers", "torch", "numpy")


main()
