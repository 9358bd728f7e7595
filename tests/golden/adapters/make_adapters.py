"""Make tiny-adapters.npz: what peft and transformers compute in float32 for the tiny adapters of tests/models: logits
of each token, or of an encoder the mean of its hidden states.

python tests/golden/adapters/make_adapters.py    (needs torch, transformers and peft; the package needs none of them)

PEFT saves each adapter again, and must write the same tensors under the same names: the folders are what it makes.
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
import tiny_adapters  # noqa: E402
from made_with import note_versions  # noqa: E402

TOKENS = 17


def base_model(name: str) -> torch.nn.Module:
    cfg = tiny.CONFIGS[name]
    config = transformers.AutoConfig.for_model(**{**cfg, "attn_implementation": "eager"})
    made = getattr(transformers, cfg["architectures"][0])
    model = (made(config, add_pooling_layer=False) if name == "bert" else made(config)).eval().float()
    model.load_state_dict({key: torch.from_numpy(value) for key, value in tiny.weights(cfg).items()}, strict=False)
    model.tie_weights()
    return model


def run(name: str, folder: Path) -> np.ndarray:
    cfg = tiny.CONFIGS[tiny_adapters.CASES[name][0]]
    tiny_adapters.write_case(folder / "given", name)
    model = peft.PeftModel.from_pretrained(base_model(tiny_adapters.CASES[name][0]), folder / "given").eval().float()
    model.save_pretrained(folder / "saved", save_embedding_layers="-base" in name)
    given, saved = (load_file(folder / part / "adapter_model.safetensors") for part in ("given", "saved"))
    assert given.keys() == saved.keys(), (name, sorted(given.keys() ^ saved.keys()))
    assert all(torch.equal(given[key].float(), saved[key].float()) for key in given), name
    ids = torch.from_numpy(tiny.token_ids(cfg, TOKENS).astype(np.int64))[None]
    with torch.no_grad():
        result = model(input_ids=ids, attention_mask=torch.ones_like(ids))
    values = result.logits[0] if "logits" in result else result.last_hidden_state[0].mean(dim=0)
    return values.numpy().astype(np.float32)


def main() -> None:
    arrays = {}
    for name in tiny_adapters.CASES:
        with tempfile.TemporaryDirectory() as folder:
            arrays[name] = run(name, Path(folder))
    np.savez_compressed(HERE / "tiny-adapters.npz", **arrays)
    note_versions(HERE / "tiny-adapters.npz", "peft", "transformers", "torch", "numpy")


main()
