"""A tiny random chat that sees, and what transformers computes with it: eyes.npz; tiles of 60 pictures: tiles.npz.

    python tests/golden/vision/make_eyes.py      (transformers, torch, pillow below 13)

Weights come from a seed alone (tests/pictures/tiny_eyes.py), so only outputs are stored: the ids of conversations, the
vectors of pictures, and the logits after every token. Text written as <image> in a message is left out of the prompts
that transformers gets, since it would read it as a picture.
"""

import io
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "pictures")]
import tiny_eyes  # noqa: E402
from made_with import note_versions  # noqa: E402


def tiles():
    """The tiles of the 60 pictures of pictures.npz, and their rows and columns."""
    stored, arrays = np.load(HERE / "pictures.npz"), {}
    processor = Idefics3ImageProcessorPil(size={"longest_edge": 24}, max_image_size={"longest_edge": 8})
    whole = Idefics3ImageProcessorPil(
        size={"longest_edge": 24}, max_image_size={"longest_edge": 8}, do_image_splitting=False
    )
    for key in stored.files:
        if key.startswith("file."):
            name = key.removeprefix("file.")
            image = ImageOps.exif_transpose(Image.open(io.BytesIO(stored[key].tobytes())))
            found = processor([[image]], return_tensors="np", return_row_col_info=True)
            arrays[name] = found["pixel_values"][0].astype(np.float32)
            arrays[f"{name}.grid"] = np.array([found["rows"][0][0], found["cols"][0][0]], np.int32)
            arrays[f"{name}.whole"] = whole([[image]], return_tensors="np")["pixel_values"][0].astype(np.float32)
    return arrays


@torch.no_grad()
def main():
    arrays = {}
    with tempfile.TemporaryDirectory() as folder:
        path = tiny_eyes.write_folder(Path(folder))
        model = AutoModelForImageTextToText.from_pretrained(path, attn_implementation="eager").eval()
        said = {k: v for k, v in tiny_eyes.PROCESSOR.items() if k != "image_processor_type"}
        processor = Idefics3Processor(
            Idefics3ImageProcessorPil(**said),
            PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json")),
            image_seq_len=tiny_eyes.PLACES,
            chat_template=tiny_eyes.TEMPLATE,
        )
    for i, pixels in enumerate(tiny_eyes.pictures()):
        found = processor.image_processor([[Image.fromarray(pixels)]], return_tensors="pt")
        arrays[f"picture.{i}"] = torch.cat(model.model.get_image_features(**found).pooler_output).numpy()
    for name in tiny_eyes.CONVERSATIONS:
        given = [Image.fromarray(pixels) for pixels in tiny_eyes.pictures()]
        messages = tiny_eyes.messages(name, given)
        seen = [p["image"] for m in messages for p in m["content"] if p["type"] == "image"]
        for m in messages:
            m["content"] = [
                {"type": "image"} if p["type"] == "image" else {**p, "text": p["text"].replace("<image>", "")}
                for p in m["content"]
            ]
        prompt = processor.apply_chat_template(messages, add_generation_prompt=True)
        inputs = processor(text=[prompt], images=[seen] if seen else None, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        arrays[f"{name}.ids"] = inputs["input_ids"][0].numpy().astype(np.int32)
        logits = model(**inputs).logits[0].numpy()
        arrays[f"{name}.last"], arrays[f"{name}.logits"] = logits[-1], logits[::7].astype(np.float32)
        made = model.generate(**inputs, max_new_tokens=12, do_sample=False, eos_token_id=None)
        arrays[f"{name}.made"] = made[0, inputs["input_ids"].shape[1] :].numpy().astype(np.int32)
    for path, found in ((HERE / "eyes.npz", arrays), (HERE / "tiles.npz", tiles())):
        np.savez_compressed(path, **found)
        note_versions(path, "transformers", "torch", "pillow", "numpy")
        print(path.name, len(found), "arrays,", path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
