"""Tiny random models with pictures, and what transformers computes with them: towers.npz.

    python tests/golden/vision/make_towers.py      (transformers, torch, pillow below 13)

Weights come from a seed alone (tests/pictures/tiny_towers.py), so only the outputs are stored: hidden states of both
towers, the features of texts and pictures, and the logits.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "pictures")]
import tiny_towers  # noqa: E402
from made_with import note_versions  # noqa: E402

PROCESSORS = {"clip": CLIPImageProcessorPil, "siglip": SiglipImageProcessorPil, "siglip2": Siglip2ImageProcessorPil}


def seen(model, kind, processor, pixels):
    """Hidden states and features of one picture."""
    inputs = processor(pixels, return_tensors="pt")
    found = model.vision_model(**inputs)
    hidden = found.last_hidden_state[0]
    if kind == "siglip2":
        hidden = hidden[: int(inputs["pixel_attention_mask"].sum())]
    features = model.get_image_features(**inputs)
    return hidden.numpy(), getattr(features, "pooler_output", features)[0].numpy()


@torch.no_grad()
def main():
    arrays = {}
    for kind in tiny_towers.CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            path = tiny_towers.write_folder(Path(folder), kind)
            model = AutoModel.from_pretrained(path, attn_implementation="eager").eval()
            said = dict(tiny_towers.PROCESSORS[kind])
            said.pop("image_processor_type")
            processor = PROCESSORS[kind](**said)
        for i, pixels in enumerate(tiny_towers.pictures()):
            arrays[f"{kind}.picture.{i}.hidden"], arrays[f"{kind}.picture.{i}"] = seen(model, kind, processor, pixels)
        for i, ids in enumerate(tiny_towers.texts(kind)):
            given = torch.tensor([tiny_towers.padded(kind, ids)])
            arrays[f"{kind}.text.{i}.hidden"] = model.text_model(given).last_hidden_state[0].numpy()
            features = model.get_text_features(given)
            arrays[f"{kind}.text.{i}"] = getattr(features, "pooler_output", features)[0].numpy()
        arrays[f"{kind}.scale"] = np.float32(model.logit_scale.exp().item())
        arrays[f"{kind}.bias"] = np.float32(getattr(model, "logit_bias", torch.zeros(1)).item())
    path = HERE / "towers.npz"
    np.savez_compressed(path, **arrays)
    note_versions(path, "transformers", "torch", "pillow", "numpy")
    print(len(arrays), "arrays,", path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
