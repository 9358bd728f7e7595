"""Tiny random chats that see, of several types, and what transformers computes: sights_TYPE.npz and sights.json.

    python tests/golden/vision/make_sights.py gemma3      (transformers, torch, pillow below 13)

Weights come from a seed alone (tests/pictures/tiny_sights.py), for the names and shapes that transformers saves, which
sights.json has. Stored are: `ID.ids` of conversations, `picture.N` the vectors of pictures, `ID.logits` after every
seventh token, `ID.last`, `ID.made` greedy tokens, and for each of the 60 pictures of pictures.npz the bytes that it is
resized to, as the processor has them before they are scaled, and its first patch as floats.
"""

import io
import json
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedTokenizerFast
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "pictures")]
import tiny_eyes  # noqa: E402
import tiny_sights  # noqa: E402
from made_with import note_versions  # noqa: E402

SMALL = {
    "gemma3": {**tiny_sights.PAN, "size": {"height": 8, "width": 8}, "pan_and_scan_min_crop_size": 6},
    "qwen3_vl": {"size": {"shortest_edge": 70, "longest_edge": 300}},
}


def processor_of(kind, folder, **changes):
    """The processor of transformers, of the PIL kind."""
    if kind != "gemma3":
        return qwen_processor(kind, folder, **changes)
    said = {k: v for k, v in {**tiny_sights.TYPES[kind]["processor"], **changes}.items() if k != "image_processor_type"}
    names = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), extra_special_tokens=names)
    config = tiny_sights.TYPES[kind]["config"]
    return Gemma3Processor(
        Gemma3ImageProcessorPil(**said),
        tokenizer,
        chat_template=tiny_sights.TYPES[kind]["template"],
        image_seq_length=config["mm_tokens_per_image"],
    )


def qwen_processor(kind, folder, **changes):
    said = {k: v for k, v in {**tiny_sights.TYPES[kind]["processor"], **changes}.items() if k != "image_processor_type"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    return WithoutVideos(Qwen2VLImageProcessorPil(**said), tokenizer, chat_template=tiny_sights.TYPES[kind]["template"])


class WithoutVideos(Qwen3VLProcessor):
    """The processor without that of videos, which wants torchvision."""

    def check_argument_for_proper_class(self, argument_name, argument):
        pass


def shapes(kind):
    """Tensor name -> shape, as transformers saves the model."""
    config = tiny_sights.TYPES[kind]["config"]
    with tempfile.TemporaryDirectory() as folder:
        made = AutoConfig.for_model(**{k: v for k, v in config.items() if k != "architectures"})
        AutoModelForImageTextToText.from_config(made).save_pretrained(folder)
        with (Path(folder) / "model.safetensors").open("rb") as file:
            head = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    return {name: one["shape"] for name, one in head.items() if name != "__metadata__"}


def prepared(kind, processor):
    """What the processor makes of the 60 pictures."""
    stored, arrays = np.load(HERE / "pictures.npz"), {}
    for key in stored.files:
        if not key.startswith("file."):
            continue
        name = key.removeprefix("file.")
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(stored[key].tobytes())))
        found = processor(image, return_tensors="np")
        values = found["pixel_values"]
        plain = processor(image, return_tensors="np", do_normalize=False, rescale_factor=1.0)["pixel_values"]
        arrays[f"prepared.{name}"] = np.asarray(plain, np.uint8)
        assert np.array_equal(arrays[f"prepared.{name}"], plain), name
        arrays[f"first.{name}"] = np.asarray(values.reshape(-1)[:8], np.float32)
        for field, short in (("num_crops", "crops"), ("image_grid_thw", "grid")):
            if field in found:
                arrays[f"{short}.{name}"] = np.asarray(found[field], np.int32).reshape(-1)
    return arrays


def inputs_of(processor, name, options):
    """A conversation as transformers' processor prepares it, with options for pictures."""
    given = [Image.fromarray(pixels) for pixels in tiny_eyes.pictures()]
    messages = tiny_eyes.messages(name, given)
    seen = [p["image"] for m in messages for p in m["content"] if p["type"] == "image"]
    for m in messages:
        m["content"] = [
            {"type": "image"} if p["type"] == "image" else {**p, "text": p["text"].replace("<image>", "")}
            for p in m["content"]
        ]
    prompt = processor.apply_chat_template(messages, add_generation_prompt=True)
    return processor(text=[prompt], images=[seen] if seen else None, return_tensors="pt", **options)


@torch.no_grad()
def main(kind):
    listed = HERE / "sights.json"
    known = json.loads(listed.read_text(encoding="utf-8")) if listed.exists() else {}
    known[kind] = shapes(kind)
    lines = [
        f"{json.dumps(one)}: {{\n"
        + ",\n".join(f"{json.dumps(n)}: {json.dumps(s)}" for n, s in sorted(of.items()))
        + "\n}"
        for one, of in sorted(known.items())
    ]
    listed.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    note_versions(listed, "transformers", "torch")
    arrays = {}
    with tempfile.TemporaryDirectory() as at:
        folder = tiny_sights.write_folder(Path(at), kind)
        model, info = AutoModelForImageTextToText.from_pretrained(
            folder, attn_implementation="eager", output_loading_info=True
        )
        assert not info["missing_keys"] and not info["unexpected_keys"], info
        model = model.eval()
        processor = processor_of(kind, folder)
        more = {"": {}, **({"pan.": tiny_sights.PAN} if kind == "gemma3" else {})}  # transformers asks at each call
        arrays |= prepared(kind, processor_of(kind, folder, **SMALL[kind]).image_processor) if kind in SMALL else {}
    for i, pixels in enumerate(tiny_eyes.pictures()):
        found = processor.image_processor([Image.fromarray(pixels)], return_tensors="pt")
        arrays[f"picture.{i}"] = features(model, found)
    for start, options in more.items():
        for name in ["several"] if start else tiny_eyes.CONVERSATIONS:
            inputs = inputs_of(processor, name, options)
            arrays[f"{start}{name}.ids"] = inputs["input_ids"][0].numpy().astype(np.int32)
            logits = model(**inputs).logits[0].numpy()
            arrays[f"{start}{name}.last"], arrays[f"{start}{name}.logits"] = logits[-1], logits[::7].astype(np.float32)
            made = model.generate(**inputs, max_new_tokens=12, do_sample=False, eos_token_id=None)
            arrays[f"{start}{name}.made"] = made[0, inputs["input_ids"].shape[1] :].numpy().astype(np.int32)
    path = HERE / f"sights_{kind}.npz"
    np.savez_compressed(path, **arrays)
    note_versions(path, "transformers", "torch", "pillow", "numpy")
    print(path.name, len(arrays), "arrays,", path.stat().st_size, "bytes")


def features(model, found):
    """The vectors of a picture, then those of the deep stack."""
    found.pop("num_crops", None)
    made = model.model.get_image_features(**found)
    first = made.pooler_output if isinstance(made.pooler_output, torch.Tensor) else made.pooler_output[0]
    deep = [one[0] for one in getattr(made, "deepstack_features", None) or ()]
    return torch.cat([first.reshape(-1, 32), *deep]).numpy()


if __name__ == "__main__":
    assert int(Image.__version__.split(".")[0]) < 13, "Pillow 13 has another order of passes"
    for chosen in sys.argv[1:]:
        main(chosen)
