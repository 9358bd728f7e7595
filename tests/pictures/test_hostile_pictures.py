"""Damaged, lying and oversized pictures end in typed errors, in bounded memory, and never in a crash."""

import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from soaking import times

from weft.errors import InputError, NotFoundError, UnsupportedError, WeftError
from weft.pictures import PictureLimits, is_picture, open_picture, patches_of, picture_bytes, read_picture_recipe

GOLDEN = Path(__file__).parent.parent / "golden" / "vision" / "pictures.npz"
RECIPE = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 32, "width": 32}}
MEMORY = 200_000_000


def recipe():
    return read_picture_recipe(RECIPE, {"image_size": 32, "patch_size": 16}, "preprocessor_config.json")


def stored(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(width, height, *, colour=2, rows=b"", packed=None):
    """A PNG whose header says this size, whatever its rows are."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", packed or zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def bomb(width, height):
    """A good PNG of some kilobytes that is as large as pictures may be."""
    packer, row = zlib.compressobj(1), b"\0" * (3 * width + 1)
    packed = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    return png(width, height, packed=packed)


def hostile(count, seed=0):
    """`count` files: bombs and lies first, then mutations and cuts of good ones."""
    yield from [png(60_000, 60_000), png(65_535, 600), png(2**31 - 1, 1), png(0, 5), png(6_000, 6_000), b"", b"\x89PNG"]
    yield from [
        png(40, 40, rows=b"\0" * 7),
        b"GIF89a" + b"\xff" * 40,
        b"BM" + b"\xff" * 60,
        b"RIFF\xff\xff\xff\x7fWEBPVP8 ",
    ]
    yield from [
        b"\xff\xd8\xff\xe0" + b"\xff" * 200,
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.7",
        b"P6 9 9 255 ",
    ]
    if count > 100:
        yield from [bomb(6_300, 6_300), bomb(65_000, 610)]
    rng = np.random.default_rng(seed)
    with np.load(GOLDEN) as golden:
        files = [golden[name].tobytes() for name in golden.files if name.startswith("file.")]
    for _ in range(count - (17 if count > 100 else 15)):
        data = bytearray(files[rng.integers(len(files))])
        if rng.random() < 0.3:
            del data[rng.integers(1, len(data)) :]
        for _ in range(int(rng.integers(1, 9))):
            at = int(rng.integers(len(data)))
            way = rng.integers(4)
            if way == 0:
                data[at] = int(rng.integers(256))
            elif way == 1:
                data[at : at + 4] = struct.pack(">I", int(rng.choice([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 65_536])))
            elif way == 2:
                data[at:at] = data[: int(rng.integers(64))]
            else:
                del data[at : at + int(rng.integers(1, 32))]
            data = data or bytearray(b"\0")
        yield bytes(data)


def read_all(count):
    """Read every file; print how many were pictures, how many refused, and by how many bytes memory grew."""
    import resource

    how, good, refused = recipe(), 0, 0
    with np.load(GOLDEN) as golden:
        patches_of(open_picture(golden["file.00-rgb-1x1"].tobytes()), how)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data in hostile(count):
        try:
            patches_of(open_picture(data), how)
            good += 1
        except (InputError, NotFoundError, UnsupportedError):
            refused += 1
    print(good, refused, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)


@pytest.mark.soak
def test_hostile_pictures_are_refused_in_bounded_memory():
    count = times(500, 60)
    code = f"import sys; sys.path[:0] = {sys.path!r}; import test_hostile_pictures as t; t.read_all({count})"
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    good, refused, grown = map(int, run.stdout.split())
    assert good + refused == count and refused > count // 4 and good > 0
    assert grown < MEMORY


def test_the_header_is_checked_before_pixels_are_decoded():
    with pytest.raises(InputError, match="has more pixels than the 40000000"):
        open_picture(png(60_000, 60_000))
    with pytest.raises(InputError, match="has 7000 x 7000 pixels; at most 40000000"):
        open_picture(png(7_000, 7_000))
    with pytest.raises(InputError, match=r"100000 x 1 pixels.*65536 a side"):
        open_picture(png(100_000, 1))
    with pytest.raises(InputError, match="has 25 x 25 pixels; at most 600"):
        open_picture(png(25, 25), PictureLimits(pixels=600))
    with pytest.raises(InputError, match="at most 200"):
        open_picture(stored(PIL.Image.new("RGB", (20, 20)), "WEBP"), PictureLimits(pixels=600))
    with pytest.raises(InputError, match="at most 10 are allowed"):
        open_picture(png(2, 2), PictureLimits(file_bytes=10))


def test_a_cut_file_is_an_error_and_no_grey_picture():
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        data = stored(PIL.Image.fromarray(noise), kind)
        with pytest.raises(InputError, match="cannot be decoded"):
            open_picture(data[: len(data) // 2])


@pytest.mark.parametrize("kind", ["TIFF", "ICO", "PPM", "TGA", "PCX"])
def test_other_formats_are_refused(kind):
    with pytest.raises(InputError, match=r"is not a PNG, JPEG, WEBP, GIF or BMP file|cannot be decoded"):
        open_picture(stored(PIL.Image.new("RGB", (16, 16)), kind))


def test_only_the_first_frame_of_an_animation_is_seen():
    frames = [PIL.Image.new("RGB", (4, 4), colour) for colour in ("red", "blue", "green")]
    for kind in ("GIF", "WEBP", "PNG"):
        data = stored(
            frames[0], kind, save_all=True, append_images=frames[1:], **({"lossless": True} if kind == "WEBP" else {})
        )
        assert open_picture(data).pixels()[0, 0].tolist() == [255, 0, 0]


def test_a_picture_comes_from_a_file_bytes_a_data_url_an_image_or_an_array(tmp_path):
    from base64 import b64encode

    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
    image = PIL.Image.fromarray(pixels)
    data = stored(image)
    path = tmp_path / "a.png"
    path.write_bytes(data)
    url = "data:image/png;base64," + b64encode(data).decode()
    for given in (path, data, bytearray(data), memoryview(data), url, image, pixels):
        assert is_picture(given)
        assert np.array_equal(open_picture(given).pixels(), pixels)
    assert np.array_equal(open_picture(str(path)).pixels(), pixels)
    assert not is_picture("a red bicycle") and not is_picture(str(path)) and not is_picture(["a"])


def test_grey_and_transparent_arrays_are_seen_in_colour():
    grey = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert np.array_equal(open_picture(grey).pixels(), np.repeat(grey[:, :, None], 3, 2))
    clear = np.zeros((1, 2, 4), np.uint8)
    clear[0, 1] = 10, 20, 30, 255
    assert open_picture(clear).pixels().tolist() == [[[255, 255, 255], [10, 20, 30]]]


@pytest.mark.parametrize(
    "given, said",
    [
        ("https://example.com/a.png", "fetches no pictures"),
        ("data:image/png,abc", "data: URL in base64"),
        ("data:image/png;base64,@@@", "not base64"),
        (np.zeros((2, 2, 3), np.float32), "must be uint8"),
        (np.zeros((2, 2, 2), np.uint8), "must be uint8"),
        (np.zeros((0, 2, 3), np.uint8), "0 pixels"),
        (5, "must be a path"),
        (None, "must be a path"),
    ],
)
def test_what_is_no_picture_is_said(given, said):
    with pytest.raises(InputError, match=said):
        open_picture(given)


def test_a_missing_file_is_named(tmp_path):
    for path in (tmp_path / "none.png", tmp_path, "a\0b"):
        with pytest.raises(WeftError, match="cannot be read"):
            picture_bytes(path)


def test_without_pillow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UnsupportedError, match=r"pip install weft\[vision\]"):
        open_picture(png(2, 2))


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"image_processor_type": "OtherProcessor"}, "image_processor_type must be one of"),
        ({"image_processor_type": None}, "image_processor_type must be one of"),
        ({"do_resize": False}, "do_resize must be true"),
        ({"resample": 0}, "resample must be one of"),
        ({"size": {"longest_edge": 5}}, "size must have shortest_edge"),
        ({"size": {"height": 0, "width": 3}}, "height must be a whole number"),
        ({"size": {"height": 64, "width": 64}}, "must give pictures of 32 x 32"),
        ({"image_mean": [0.5, 0.5]}, "image_mean must be three numbers"),
        ({"image_std": [0.5, 0.5, 0]}, "image_std must be three numbers above 0"),
        ({"rescale_factor": "x"}, "rescale_factor must be a number"),
    ],
)
def test_settings_of_a_processor_that_cannot_be_followed_are_refused(changed, said):
    with pytest.raises(WeftError, match=said):
        read_picture_recipe({**RECIPE, **changed}, {"image_size": 32, "patch_size": 16}, "preprocessor_config.json")
