"""From what a caller gives to a Picture: a file, bytes, a data: URL, a PIL image or an array. None of it is trusted."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, NotFoundError, UnsupportedError
from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")
MAX_SIDE = 65_536
STRIP_PIXELS = 1 << 18  # decoded at once into bytes: a megabyte or so beside what Pillow holds
WEBP_COPIES = 3  # its decoder holds a picture so many times
ORIENTATION = 0x0112  # the EXIF tag: how the camera was held
# By the tag's value: how Pillow turns pixels upright, and whether rows become columns.
TURNS = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270",
         7: "TRANSVERSE", 8: "ROTATE_90"}  # fmt: skip
SWAPPED = (5, 6, 7, 8)


@frozen
class PictureLimits:
    """The most that is read of one picture: bytes of its file, and pixels once it is decoded.

    A picture takes about four bytes of memory a pixel while it is read; a WebP file, three times that, so that it may
    have a third of the pixels.
    """

    file_bytes: int = 50_000_000
    pixels: int = 40_000_000

    @property
    def work_bytes(self) -> int:
        """What the largest picture takes while it is read."""
        return 4 * self.pixels

    def __post_init__(self) -> None:
        for name in ("file_bytes", "pixels"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                what = "must be a whole number from 1 on"
                raise InputError("picture", what, given=getattr(self, name), field=f"PictureLimits.{name}")

    def check_bytes(self, size: int) -> None:
        if size > self.file_bytes:
            what = f"has {size} bytes; at most {self.file_bytes} are allowed"
            raise InputError("picture", what, field="picture", advice="give a smaller file, or raise PictureLimits")

    def check_size(self, width: int, height: int, kind: str = "") -> None:
        most = self.pixels // (WEBP_COPIES if kind == "WEBP" else 1)
        if width < 1 or height < 1:
            raise InputError("picture", f"has {width} x {height} pixels", field="picture")
        if width * height > most or max(width, height) > MAX_SIDE:
            what = f"has {width} x {height} pixels; at most {most} are allowed, and {MAX_SIDE} a side"
            raise InputError("picture", what, field="picture", advice="make it smaller, or raise PictureLimits")


class Picture:
    """A picture upright, of `rows` x `cols` pixels, read in strips of bytes [n, cols, 3]: red, green and blue.

    A transparent picture is seen on white, as the processors of transformers have it.
    """

    def __init__(self, rows: int, cols: int, image: Any = None, turn: int = 1, array: np.ndarray | None = None) -> None:
        self.rows, self.cols = rows, cols
        self._image, self._turn, self._array = image, turn, array
        # asked of the whole picture: a part that is cropped may have lost what says so
        self._clear = image is not None and ("A" in image.getbands() or image.info.get("transparency") is not None)

    def strips(self, first: int, end: int) -> Iterator[tuple[int, np.ndarray]]:
        """The rows from `first` up to `end`, without it, in parts: where a part begins, and its bytes."""
        height = max(1, STRIP_PIXELS // self.cols)
        for at in range(first, end, height):
            yield at, self._rows(at, min(at + height, end))

    def _rows(self, first: int, end: int) -> np.ndarray:
        import numpy as np

        if self._array is not None:
            return np.ascontiguousarray(self._array[first:end])
        image = self._image
        if self._turn == 1:
            part = image.crop((0, first, self.cols, end))
        else:
            from PIL import Image

            part = image.crop(_source_box(self._turn, first, end, image.size))
            part = part.transpose(getattr(Image.Transpose, TURNS[self._turn]))
        return np.asarray(part if part.mode == "RGB" and not self._clear else _on_white(part, self._clear))

    def pixels(self) -> np.ndarray:
        """All of it, bytes [rows, cols, 3]."""
        import numpy as np

        return np.concatenate([part for _, part in self.strips(0, self.rows)])


def _on_white(part: Any, clear: bool) -> Any:
    if not clear:
        return part.convert("RGB")
    from PIL import Image

    seen = part.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", seen.size, (255, 255, 255, 255)), seen).convert("RGB")


def _source_box(turn: int, first: int, end: int, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """The part of the stored picture, left, top, right, bottom, that is rows first to end of the upright one."""
    width, height = size
    if turn == 2:
        return 0, first, width, end
    if turn in (3, 4):
        return 0, height - end, width, height - first
    if turn in (5, 6):
        return first, 0, end, height
    return width - end, 0, width - first, height


def is_picture(given: Any) -> bool:
    """Whether this is meant as a picture and not as a text: a path that is no string, bytes, a data: URL of an image,
    a PIL image or an array of bytes."""
    if isinstance(given, str):
        return given[:11].lower() == "data:image/"
    if isinstance(given, (bytes, bytearray, memoryview, PathLike, Picture)):
        return True
    return _is_pil(given) or (getattr(given, "ndim", 0) in (2, 3) and getattr(given.dtype, "kind", "") in "uif")


def _is_pil(given: Any) -> bool:
    return any(f"{kind.__module__}.{kind.__name__}" == "PIL.Image.Image" for kind in type(given).__mro__)


def open_picture(given: Any, limits: PictureLimits | None = None) -> Picture:
    """The picture, upright. Its header is checked against the limits before its pixels are decoded.

    Strings are paths or data: URLs. Only the first frame of an animation is read. What cannot be read is an InputError.
    """
    limits = limits or PictureLimits()
    if isinstance(given, Picture):
        return given
    if _is_pil(given):
        limits.check_size(*given.size)
        return _loaded(given, given.getexif().get(ORIENTATION, 1))
    if hasattr(given, "ndim") and hasattr(given, "dtype"):
        return _of_array(given, limits)
    return _decoded(picture_bytes(given, limits), limits)


def picture_bytes(given: Any, limits: PictureLimits | None = None) -> bytes:
    """The bytes of a picture's file, from a path, a data: URL or bytes."""
    limits = limits or PictureLimits()
    if isinstance(given, (bytes, bytearray, memoryview)):
        limits.check_bytes(memoryview(given).nbytes)
        return bytes(given)
    if isinstance(given, str) and given[:5].lower() == "data:":
        return _data_url(given, limits)
    if isinstance(given, str) and "://" in given[:16]:
        what = "is an address, and weft fetches no pictures"
        raise InputError("picture", what, field="picture", given=given, advice="fetch it, and give its bytes")
    if not isinstance(given, (str, PathLike)):
        what = "must be a path, bytes, a data: URL, a PIL image or an array of bytes"
        raise InputError("picture", what, field="picture", given=type(given).__name__)
    path = Path(given)
    try:
        limits.check_bytes(path.stat().st_size)
        with path.open("rb") as file:
            data = file.read(limits.file_bytes + 1)  # a pipe or a growing file says nothing of its size
    except (OSError, ValueError) as error:
        raise NotFoundError("picture", f"{path} cannot be read: {getattr(error, 'strerror', error)}") from None
    limits.check_bytes(len(data))
    return data


def _data_url(given: str, limits: PictureLimits) -> bytes:
    head, comma, body = given.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        what = "must be a data: URL in base64, data:image/png;base64,…"
        raise InputError("picture", what, field="picture", given=given[:60])
    limits.check_bytes(len(body) * 3 // 4 - 2)
    try:
        return b64decode("".join(body.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError("picture", f"has a data: URL that is not base64: {error}", field="picture") from None


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        what = "pictures are decoded by Pillow, which is not installed"
        raise UnsupportedError("picture", what, advice="pip install weft[vision]") from None
    return Image


def _decoded(data: bytes, limits: PictureLimits) -> Picture:
    from io import BytesIO

    image_module = _pillow()
    try:
        image = image_module.open(BytesIO(data), formats=FORMATS)
        limits.check_size(image.size[0], image.size[1], image.format or "")
        turn = image.getexif().get(ORIENTATION, 1)
    except InputError:
        raise
    except image_module.UnidentifiedImageError:
        what = f"is not a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file"
        raise InputError("picture", what, field="picture", given=data[:12]) from None
    except image_module.DecompressionBombError:  # Pillow's own limit, far above this one
        what = f"has more pixels than the {limits.pixels} that are allowed"
        raise InputError("picture", what, field="picture", advice="make it smaller") from None
    except Exception as error:  # Pillow's readers raise many kinds for damaged files
        raise _unreadable(error) from None
    return _loaded(image, turn)


def _loaded(image: Any, turn: Any) -> Picture:
    """Decode the pixels."""
    try:
        image.load()
    except Exception as error:
        raise _unreadable(error) from None
    cols, rows = image.size
    turn = turn if turn in TURNS else 1
    return Picture(*((cols, rows) if turn in SWAPPED else (rows, cols)), image=image, turn=turn)


def _unreadable(error: Exception) -> InputError:
    return InputError("picture", f"cannot be decoded: {type(error).__name__} {error!s:.160}", field="picture")


def _of_array(given: Any, limits: PictureLimits) -> Picture:
    """A picture of bytes [rows, cols], [rows, cols, 1], [rows, cols, 3] or with transparency [rows, cols, 4]."""
    import numpy as np

    array = np.asarray(given)
    channels = array.shape[2] if array.ndim == 3 else 1
    if array.ndim not in (2, 3) or array.dtype != np.uint8 or channels not in (1, 3, 4):
        what = f"must be uint8 [rows, cols, 3], or with 1 or 4 channels, not {array.dtype} {array.shape}"
        raise InputError("picture", what, field="picture", advice="floats from 0 to 1: (255 * x).round().astype('u1')")
    rows, cols = array.shape[:2]
    limits.check_size(cols, rows)
    colours = np.broadcast_to(array.reshape(rows, cols, 1), (rows, cols, 3)) if channels == 1 else array[:, :, :3]
    if channels == 4:
        share = array[:, :, 3:] / 255
        colours = np.round(share * colours + (1 - share) * 255).astype(np.uint8)
    return Picture(rows, cols, array=colours)
