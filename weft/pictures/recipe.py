"""How a model wants its pictures: sizes, resampling, crop and colours, read from the file that its processor was saved
to. Names are those of transformers; what the files do not say has the default of the model's processor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import FormatError, UnsupportedError
from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np

FILTERS = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
MAX_PIXELS = 4_096  # of a side that a model may want
MAX_PATCHES = 16_384
HALF = (0.5, 0.5, 0.5)
# Settings of a processor -> what it does where its file does not say. A processor of flexible resolution has patches.
CLIP = {
    "size": {"shortest_edge": 224},
    "crop_size": {"height": 224, "width": 224},
    "do_center_crop": True,
    "resample": 3,
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
}
SIGLIP = {"do_center_crop": False, "image_mean": HALF, "image_std": HALF}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "CLIPImageProcessor": CLIP,
    "CLIPFeatureExtractor": CLIP,
    "SiglipImageProcessor": {**SIGLIP, "size": {"height": 224, "width": 224}, "resample": 3},
    "Siglip2ImageProcessor": {**SIGLIP, "resample": 2, "patch_size": 16, "max_num_patches": 256},
}


@frozen
class PictureRecipe:
    """What is done with a picture. `size` is (rows, cols), or with `shortest` the length of the shorter side; with
    `max_patches` the size is the largest that has so many patches of `patch` pixels. `crop` is (rows, cols) or None."""

    filter: str
    size: tuple[int, int] | None
    shortest: int | None
    crop: tuple[int, int] | None
    patch: int
    max_patches: int | None
    scale: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def interleaved(self) -> bool:
        """Whether the numbers of a patch are by pixel, and not by colour first."""
        return self.max_patches is not None

    def result(self, rows: int, cols: int) -> tuple[int, int]:
        """The size that a picture is resized to, before it is cropped."""
        if self.max_patches is not None:
            return largest_size(rows, cols, self.patch, self.max_patches)
        if self.size is not None:
            return self.size
        assert self.shortest is not None
        longer = int(self.shortest * max(rows, cols) / min(rows, cols))
        return (self.shortest, longer) if rows <= cols else (longer, self.shortest)

    def window(self, result: tuple[int, int]) -> tuple[int, int, int, int]:
        """The part of the result that is kept: top, left, rows, cols. It may reach past a smaller result."""
        if self.crop is None:
            return 0, 0, *result
        return (result[0] - self.crop[0]) // 2, (result[1] - self.crop[1]) // 2, *self.crop

    def table(self) -> np.ndarray:
        """The float of each byte, float32 [3, 256]: scaled in float64 and rounded, then normalised in float32."""
        import numpy as np

        scaled = (np.arange(256, dtype=np.float64) * self.scale).astype(np.float32)
        mean, std = (np.array(values, np.float32)[:, None] for values in (self.mean, self.std))
        return np.ascontiguousarray((scaled - mean) / std)

    def identity(self) -> str:
        """All of it as one line, for fingerprints."""
        return repr(self)


def largest_size(rows: int, cols: int, patch: int, most: int, eps: float = 1e-5) -> tuple[int, int]:
    """The largest size near the picture's proportions that is whole patches, at most `most` of them.

    The scale is found by halving, with the reference's bounds, so that the same size comes out.
    """

    def scaled(size: int, scale: float) -> int:
        return max(patch, math.ceil(size * scale / patch) * patch)

    low, high = eps / 10, 100.0
    while high - low >= eps:
        middle = (low + high) / 2
        fits = (scaled(rows, middle) / patch) * (scaled(cols, middle) / patch) <= most
        low, high = (middle, high) if fits else (low, middle)
    return scaled(rows, low), scaled(cols, low)


def read_picture_recipe(config: Mapping[str, Any], vision: Mapping[str, Any], file: str) -> PictureRecipe:
    """The recipe in the content of preprocessor_config.json (`file`), for a tower with the vision_config `vision`."""
    kind = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")
    kind = kind.removesuffix("Fast").removesuffix("Pil")
    if kind not in DEFAULTS:
        what = f"must be one of {', '.join(DEFAULTS)}"
        raise UnsupportedError(file, what, field="image_processor_type", given=kind or None)
    said = {**DEFAULTS[kind], **{name: value for name, value in config.items() if value is not None}}
    for name in ("do_resize", "do_rescale", "do_normalize"):
        if said.get(name, True) is not True:
            raise UnsupportedError(file, "must be true", field=name, given=said[name])
    flexible = "max_num_patches" in DEFAULTS[kind]
    patch = _count(said if flexible else vision, "patch_size", file, MAX_PIXELS, 16)
    if said["resample"] not in FILTERS:
        what = f"must be one of {', '.join(f'{number} ({name})' for number, name in FILTERS.items())}"
        raise UnsupportedError(file, what, field="resample", given=said["resample"])
    size = None if flexible else _size(said["size"], "size", file)
    crop = _size(said["crop_size"], "crop_size", file) if said["do_center_crop"] else None
    recipe = PictureRecipe(
        filter=FILTERS[said["resample"]],
        size=size if isinstance(size, tuple) else None,
        shortest=size if isinstance(size, int) else None,
        crop=(crop, crop) if isinstance(crop, int) else crop,
        patch=patch,
        max_patches=_count(said, "max_num_patches", file, MAX_PATCHES, 256) if flexible else None,
        scale=_number(said.get("rescale_factor", 1 / 255), "rescale_factor", file),
        mean=_colours(said["image_mean"], "image_mean", file),
        std=_colours(said["image_std"], "image_std", file),
    )
    _check_grid(recipe, vision, file)
    return recipe


def _check_grid(recipe: PictureRecipe, vision: Mapping[str, Any], file: str) -> None:
    """Refuse sizes that are not those of the tower's positions."""
    if recipe.max_patches is not None:
        return
    wanted = vision.get("image_size", 224)
    found = recipe.crop or recipe.size
    if found != (wanted, wanted):
        what = f"must give pictures of {wanted} x {wanted} pixels, the image_size of the model's vision_config"
        raise FormatError(file, what, field="crop_size" if recipe.crop else "size", given=found or recipe.shortest)


def _size(given: Any, name: str, file: str) -> tuple[int, int] | int:
    """(rows, cols), or the length of the shorter side."""
    if isinstance(given, dict):
        if "shortest_edge" in given and "longest_edge" not in given:
            return _count(given, "shortest_edge", file, MAX_PIXELS)
        if "height" in given and "width" in given:
            return _count(given, "height", file, MAX_PIXELS), _count(given, "width", file, MAX_PIXELS)
        what = "must have shortest_edge, or height and width"
        raise UnsupportedError(file, what, field=name, given=given)
    return _count({name: given}, name, file, MAX_PIXELS)


def _count(table: Mapping[str, Any], name: str, file: str, most: int, otherwise: int = 0) -> int:
    given = table.get(name, otherwise)
    if type(given) is not int or not 1 <= given <= most:
        raise FormatError(file, f"must be a whole number from 1 to {most}", field=name, given=given)
    return given


def _number(given: Any, name: str, file: str) -> float:
    if not isinstance(given, (int, float)) or isinstance(given, bool) or not math.isfinite(given) or given <= 0:
        raise FormatError(file, "must be a number above 0", field=name, given=given)
    return float(given)


def _colours(given: Any, name: str, file: str) -> tuple[float, float, float]:
    values = given if isinstance(given, (list, tuple)) else ()
    if len(values) != 3 or not all(type(v) in (int, float) and math.isfinite(v) for v in values):
        raise FormatError(file, "must be three numbers", field=name, given=given)
    if name == "image_std" and min(values) <= 0:
        raise FormatError(file, "must be three numbers above 0", field=name, given=given)
    return float(values[0]), float(values[1]), float(values[2])
