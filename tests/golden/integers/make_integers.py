"""Make integers.npz: transformers' logits for the dequantised weights of tests/models/tiny_integers.py's folders.

python tests/golden/integers/make_integers.py        (needs torch and transformers)

Where compressed_tensors can be imported, its own packer must give the same words, and its own unpacker the same codes.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "models"))
sys.path.insert(0, str(HERE.parent))
import tiny_integers  # noqa: E402
from made_with import note_versions  # noqa: E402


def logits(dense: dict[str, np.ndarray]) -> np.ndarray:
    cfg = tiny_integers.CONFIG
    config = transformers.AutoConfig.for_model(**{**cfg, "attn_implementation": "eager"})
    model = transformers.LlamaForCausalLM(config).eval().float()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in dense.items()})
    with torch.no_grad():
        return model(torch.from_numpy(tiny_integers.IDS.astype(np.int64))[None]).logits[0].numpy()


def same_as_the_library(about: dict[str, Any], stored: dict[str, Any]) -> bool:
    """Whether compressed_tensors was there to say that these are its words."""
    if about["method"] != "ct" or about.get("plain") or importlib.util.find_spec("compressed_tensors") is None:
        return False
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32

    bits, middle = about["bits"], 2 ** (about["bits"] - 1)
    for name, value in stored.items():
        if not name.endswith(".weight_packed"):
            continue
        base = name.removesuffix("_packed")
        weight = tiny_integers.tiny.weights(tiny_integers.CONFIG)[base]
        codes, zero, _ = tiny_integers.quantised(weight, about)
        theirs = torch.from_numpy((codes.astype(np.int64) - middle).astype(np.int8))
        assert np.array_equal(pack_to_int32(theirs, bits).numpy(), value), name
        assert torch.equal(unpack_from_int32(torch.from_numpy(value), bits, theirs.shape), theirs), name
        if not about["symmetric"]:
            zeros = torch.from_numpy((zero.astype(np.int64) - middle).astype(np.int8))
            packed = pack_to_int32(zeros, bits, packed_dim=0).numpy()
            assert np.array_equal(packed, stored[base + "_zero_point"]), name
    return True


def main() -> None:
    found, compared = {}, 0
    for name, about in tiny_integers.VARIANTS.items():
        stored, dense = tiny_integers.model(about)
        compared += same_as_the_library(about, stored)
        found[name] = logits(dense).astype(np.float32)
    np.savez_compressed(HERE / "integers.npz", **found)
    note_versions(
        HERE / "integers.npz", "numpy", "torch", "transformers", *(["compressed-tensors"] if compared else [])
    )
    print(f"{len(found)} variants, {compared} of them packed by compressed_tensors too")


if __name__ == "__main__":
    main()
