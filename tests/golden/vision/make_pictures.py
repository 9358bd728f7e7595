"""60 small pictures in files, and what transformers' processors of the PIL kind make of them: pictures.npz.

    python tests/golden/vision/make_pictures.py      (transformers, pillow below 13, torch)

The reference is the picture upright, as `load_image` turns it, and the PIL ("slow") processors, whose resampling is
Pillow's; those put transparent pictures on white. Pillow 13 may take the vertical pass first, for speed, and then has
other roundings; all before it take the horizontal one first, and so does weft. Each file is a uint8 array `file.NAME`;
the floats of processor P are `P.NAME`.
"""

import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from made_with import note_versions  # noqa: E402

PROCESSORS = {
    "clip": CLIPImageProcessorPil(size={"shortest_edge": 10}, crop_size={"height": 8, "width": 8}),
    "siglip": SiglipImageProcessorPil(size={"height": 8, "width": 8}),
    "siglip2": Siglip2ImageProcessorPil(patch_size=4, max_num_patches=6, do_convert_rgb=True),
    "bilinear": SiglipImageProcessorPil(size={"height": 12, "width": 8}, resample=2),
    "lanczos": CLIPImageProcessorPil(size={"shortest_edge": 5}, crop_size={"height": 8, "width": 8}, resample=1),
}


def scene(rng, width, height, channels):
    """Smooth colours, edges and noise."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    planes = []
    for _ in range(channels):
        a, b, c = rng.uniform(-0.3, 0.3, 3)
        wave = 127 + 120 * np.sin(a * x + b * y + 6 * c)
        wave[(x > width * rng.uniform(0.2, 0.8)) & (y > height * rng.uniform(0.2, 0.8))] = rng.integers(0, 256)
        planes.append(wave + rng.normal(0, 12, wave.shape))
    pixels = np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)
    return pixels[:, :, 0] if channels == 1 else pixels


def stored(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def files():
    rng = np.random.default_rng(53)
    made = {}

    def add(name, mode, size, kind, convert=None, **options):
        channels = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}[mode]
        image = (
            Image.fromarray(scene(rng, *size, channels), mode)
            if mode != "LA"
            else Image.merge("LA", [Image.fromarray(scene(rng, *size, 1)) for _ in range(2)])
        )
        made[f"{len(made):02d}-{name}"] = stored(convert(image) if convert else image, kind, **options)

    for size in [
        (1, 1),
        (2, 1),
        (1, 2),
        (3, 5),
        (7, 7),
        (8, 8),
        (10, 10),
        (13, 37),
        (37, 13),
        (64, 48),
        (48, 64),
        (91, 23),
        (23, 91),
        (100, 1),
        (1, 100),
        (300, 2),
        (2, 300),
        (17, 16),
        (33, 32),
        (120, 90),
    ]:
        add(f"rgb-{size[0]}x{size[1]}", "RGB", size, "PNG")
    for size in [(1, 1), (9, 31), (40, 30)]:
        add(f"grey-{size[0]}x{size[1]}", "L", size, "PNG")
        add(f"alpha-{size[0]}x{size[1]}", "RGBA", size, "PNG")
        add(f"grey-alpha-{size[0]}x{size[1]}", "LA", size, "PNG")
    for size in [(1, 1), (21, 34), (50, 20)]:
        add(f"palette-{size[0]}x{size[1]}", "RGB", size, "PNG", lambda i: i.quantize(16))
        add(f"bits-{size[0]}x{size[1]}", "L", size, "PNG", lambda i: i.convert("1"))
    add("palette-clear", "RGB", (20, 30), "PNG", lambda i: i.quantize(16), transparency=3)
    add("sixteen-bits", "L", (20, 14), "PNG", lambda i: Image.fromarray(np.asarray(i).astype(np.uint16) * 3))
    for turn in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = turn
        add(f"turned-{turn}", "RGB", (31, 19), "JPEG" if turn % 2 else "PNG", exif=exif.tobytes())
    add_formats(add, rng)
    return made


def add_formats(add, rng):
    """Files of the other formats."""
    add("jpeg", "RGB", (57, 43), "JPEG", quality=90)
    add("jpeg-444", "RGB", (40, 41), "JPEG", quality=75, subsampling=0)
    add("jpeg-grey", "L", (29, 40), "JPEG")
    add("jpeg-cmyk", "RGB", (24, 32), "JPEG", lambda i: i.convert("CMYK"))
    add("jpeg-progressive", "RGB", (50, 40), "JPEG", progressive=True)
    add("webp-lossless", "RGB", (35, 45), "WEBP", lossless=True)
    add("webp-alpha", "RGBA", (25, 15), "WEBP", lossless=True)
    add("webp", "RGB", (40, 40), "WEBP", quality=80)
    add("gif", "RGB", (30, 22), "GIF", lambda i: i.quantize(32))
    frames = [Image.fromarray(scene(rng, 18, 12, 3)).quantize(16) for _ in range(3)]
    add("gif-animated", "RGB", (18, 12), "GIF", lambda i: frames[0], save_all=True, append_images=frames[1:])
    add("gif-clear", "RGB", (14, 14), "GIF", lambda i: i.quantize(8), transparency=2)
    add("bmp", "RGB", (16, 27), "BMP")
    add("jpeg-wide", "RGB", (400, 3), "JPEG")
    add("bmp-grey", "L", (27, 16), "BMP")
    add("bmp-palette", "RGB", (15, 15), "BMP", lambda i: i.quantize(16))


def main():
    assert int(Image.__version__.split(".")[0]) < 13, "Pillow 13 has another order of passes"
    made = files()
    assert len(made) >= 60, len(made)
    arrays = {}
    for name, data in made.items():
        arrays[f"file.{name}"] = np.frombuffer(data, np.uint8)
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        for kind, processor in PROCESSORS.items():
            found = processor(image, return_tensors="np")
            values = found["pixel_values"][0]
            if kind == "siglip2":
                rows, cols = found["spatial_shapes"][0]
                values = values[: rows * cols]
                arrays[f"{kind}.{name}.grid"] = np.array([rows, cols], np.int32)
            arrays[f"{kind}.{name}"] = values.astype(np.float32)
    path = HERE / "pictures.npz"
    np.savez_compressed(path, **arrays)
    note_versions(path, "transformers", "pillow", "numpy")
    print(len(made), "pictures,", path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
