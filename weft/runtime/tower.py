"""The picture tower of a model: pictures as ragged batches of patches, each a sequence of tokens that are vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from weft.backends import Backend, open_backend
from weft.errors import FormatError, InputError, WeightError
from weft.models import find_module, model_module
from weft.runtime.checkpoint import Checkpoint, Tensor, read_object
from weft.runtime.programs import Programs
from weft.runtime.steps import build_step, check_step, offsets
from weft.runtime.threads import plan_threads
from weft.weights.files import TensorView

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from weft.backends.base import Executable
    from weft.graph import Tensor as Traced
    from weft.graph import Trace
    from weft.nn import Scope, Step
    from weft.runtime.prepared import Facts, Prepared

    Shares = Callable[[int, int], np.ndarray]


class Patched(Protocol):
    """A picture as weft.pictures makes it: patches, float32 [rows x cols, n], row by row."""

    @property
    def values(self) -> np.ndarray: ...

    @property
    def rows(self) -> int: ...

    @property
    def cols(self) -> int: ...


def picture_tokens(config: Mapping[str, Any]) -> str | None:
    """How a model with this config.json has pictures among its tokens: PICTURES of its file, None where it has none."""
    return getattr(find_module(str(config.get("model_type"))), "PICTURES", None)


# What a tower's Config reads of the outer config.
OUTER = ("projection_dim", "scale_factor", "mm_tokens_per_image")


def open_tower(folder: Path, text_hidden_size: int | None = None) -> Checkpoint | None:
    """The picture tower of a model's folder as a checkpoint of its own; None for a model without one that weft runs.

    `text_hidden_size` is that of the text part, for towers whose outputs are its tokens.
    """
    from weft.weights import open_safetensors

    config = read_object(folder / "config.json", missing={})
    kind = getattr(find_module(str(config.get("model_type"))), "VISION_TYPE", None)
    if kind is None:
        return None
    said = config.get("vision_config")
    if not isinstance(said, dict):
        what = f"must be an object in a {config['model_type']}"
        raise FormatError("config.json", what, field="vision_config", given=said)
    shared = {name: config[name] for name in OUTER if config.get(name) is not None}
    shared |= {"text_hidden_size": text_hidden_size} if text_hidden_size is not None else {}
    module = cast(Any, model_module(kind))
    weights = next(p for name in ("", ".index.json") if (p := folder / f"model.safetensors{name}").is_file())
    opened = open_safetensors(weights)
    tensors: dict[str, Tensor] = {}
    for name, view in opened.tensors.items():
        start = next((prefix for prefix in module.NAMES.part if name.startswith(prefix)), None)
        if start is not None:
            own = module.NAMES.current(module.NAMES.part[start] + name.removeprefix(start))
            tensors[own] = Tensor(unfolded(view))
    tensors |= derived_of(module, tensors)
    return Checkpoint(
        path=folder,
        format="safetensors",
        config={**said, **shared, "model_type": kind},
        tensors=tensors,
        size_bytes=sum(tensor.view.nbytes for tensor in tensors.values()),
        files=opened.files,
    )


def derived_of(module: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the file of a tower makes of its stored tensors."""
    if not hasattr(module, "derived"):
        return {}
    return {name: Tensor(TensorView.of(values)) for name, values in module.derived(_reader(tensors)).items()}


def unfolded(view: TensorView) -> TensorView:
    """A convolution over patches that do not overlap as a matrix over unfolded patches; no copy."""
    if len(view.shape) != 4:
        return view
    outputs, colours, rows, cols = view.shape
    return TensorView(view.dtype, (outputs, colours * rows * cols), view.bytes())


def _reader(tensors: Mapping[str, Tensor]) -> Any:
    import numpy as np

    def stored(name: str) -> np.ndarray:
        if name not in tensors:
            raise WeightError("weights", f"{name} is missing from the picture tower")
        return tensors[name].numpy().astype(np.float32)

    return stored


class Tower:
    """Vectors of pictures by one tower: `vectors`, and for tests `hidden_states`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        normalise: bool,
        compute: str = "f32",
        threads: int | None = None,
        backend: str | Backend | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self._normalise = normalise
        self.backend = open_backend(backend, threads=plan_threads(threads).count)
        self._programs = Programs(checkpoint, self.backend, compute=compute)
        self._prepared = self._first()
        self.dimension: int = self._prepared.facts["outputs"]

    def _first(self) -> Prepared:
        """The program of pictures."""
        return self._prepare("pictures", self._build)

    @property
    def config(self) -> Any:
        """An instance of the tower's Config."""
        return self._programs.config

    def _prepare(self, name: str, build: Any) -> Prepared:
        return self._programs.prepared((name, self._normalise), build, self._facts)

    def _facts(self) -> dict[str, int]:
        cfg, module = self.config, cast(Any, self._programs.module)
        sizes = {name: getattr(cfg, name) for name in ("positions", "inputs", "outputs", "hidden_size")}
        said = {"resized": int(hasattr(module, "RESIZED")), "turned": int(getattr(module, "TURNED", False))}
        return {**sizes, "class_tokens": module.CLASS_TOKENS, **said}

    def _step(self, trace: Trace, facts: Facts) -> Step:
        from weft.nn.step import TracedStep

        added = facts["hidden_size"] if facts["resized"] else 0
        return TracedStep(trace, vectors=facts["inputs"], added=added, seeing=bool(facts["turned"]))

    def _build(self, trace: Trace, w: Scope, facts: Facts) -> Mapping[str, Traced]:
        from weft import ops

        module, step = cast(Any, self._programs.module), self._step(trace, facts)
        y = module.features(module.hidden_states(w, self.config, step), w, self.config, step)
        return {"features": ops.l2_normalise(y, eps=1e-12) if self._normalise else y}

    def _build_hidden(self, trace: Trace, w: Scope, facts: Facts) -> Mapping[str, Traced]:
        return {"hidden": self._programs.module.hidden_states(w, self.config, self._step(trace, facts))}

    @cached_property
    def _vectors(self) -> Executable:
        return self._programs.compile(self._prepared, {})

    def vectors(self, pictures: Sequence[Patched]) -> np.ndarray:
        """One vector per picture, float32 [len(pictures), dimension], the same whatever else is in the batch."""
        import numpy as np

        if not pictures:
            return np.empty((0, self.dimension), np.float32)
        found = self._vectors.run(self.step_of(pictures).arrays(self._prepared.inputs))["features"]
        return cast("np.ndarray", found.astype("f4", copy=False))

    def hidden_states(self, picture: Patched) -> np.ndarray:
        """The last hidden state of every token of a picture, float32 [tokens, hidden]."""
        prepared = self._prepare("hidden", self._build_hidden)
        found = self._programs.compile(prepared, {}).run(self.step_of([picture]).arrays(prepared.inputs))["hidden"]
        return cast("np.ndarray", found.astype("f4", copy=False))

    def tokens(self, picture: Patched) -> int:
        """How many tokens a picture is."""
        return len(picture.values) + self._prepared.facts["class_tokens"]

    def step_of(self, pictures: Sequence[Patched]) -> Step:
        """The step of these pictures; ids and types are zeros, and rows the first token of each."""
        import numpy as np

        facts = self._prepared.facts
        before, resized = facts["class_tokens"], bool(facts["resized"])
        counts = [self.tokens(picture) for picture in pictures]
        wanted = None if resized else facts["positions"]
        for picture, count in zip(pictures, counts):
            if picture.values.shape[1] != facts["inputs"] or count < 1 or wanted not in (None, count):
                what = f"a picture of {count} tokens of {picture.values.shape[1]} numbers does not fit the model"
                raise InputError("embed", f"{what}, which has {wanted or 'any'} of {facts['inputs']}")
        segments = offsets(counts)
        vectors = np.zeros((int(segments[-1]), facts["inputs"]), np.float32)
        for picture, start, count in zip(pictures, segments.tolist(), counts):
            vectors[start + before : start + count] = picture.values
        given: dict[str, Any] = {"vectors": vectors, "types": np.zeros(len(vectors), np.int32)}
        if resized:
            given["added"] = np.concatenate([self._places(picture.rows, picture.cols) for picture in pictures])
        if facts["turned"]:
            given["turns"] = np.concatenate([turns_of(picture.rows, picture.cols) for picture in pictures], axis=1)
        step = build_step([np.zeros(count, np.int32) for count in counts], rows=segments[:-1], **given)
        check_step("embed", step, vocab=1, context=max(counts))
        return step

    @cached_property
    def _table(self) -> np.ndarray:
        """The square of learned positions [n, n, hidden]."""
        import numpy as np

        name, cfg = cast(Any, self._programs.module).RESIZED, self.config
        side = round(cfg.positions**0.5)
        table = self.checkpoint.tensor(name, (cfg.positions, cfg.hidden_size)).numpy()
        return table.astype(np.float32).reshape(side, side, cfg.hidden_size)

    @cached_property
    def _places(self) -> Any:
        """The positions of a picture of so many rows and columns of patches, [rows x cols, hidden]."""
        shares = corner_shares if getattr(self._programs.module, "CORNERS", False) else bilinear_shares
        return lru_cache(maxsize=64)(lambda rows, cols: resized_positions(self._table, rows, cols, shares))


class TokenTower(Tower):
    """The tower of a model whose text part reads pictures: each is some tokens of the text, `tokens_of`."""

    def _first(self) -> Prepared:
        return self._prepare("hidden", self._build_hidden)

    def _facts(self) -> dict[str, int]:
        deep = len(getattr(self.config, "deep", ()))
        return {**super()._facts(), "block": self.config.block, "merged": self.config.merged, "deep": deep}

    def _build_hidden(self, trace: Trace, w: Scope, facts: Facts) -> Mapping[str, Traced]:
        found = self._programs.module.hidden_states(w, self.config, self._step(trace, facts))
        states = found if isinstance(found, tuple) else (found,)
        return {f"deep.{index - 1}" if index else "hidden": one for index, one in enumerate(states)}

    @cached_property
    def _hidden(self) -> Executable:
        return self._programs.compile(self._prepared, {})

    @cached_property
    def _projections(self) -> list[tuple[Prepared, Executable]]:
        """The programs that make tokens of blocks: of the last hidden states, and of those that go in deeper."""
        made = [self._prepare(f"tokens.{part}", partial(self._build_tokens, part=part)) for part in range(self._parts)]
        return [(prepared, self._programs.compile(prepared, {})) for prepared in made]

    @property
    def _parts(self) -> int:
        return 1 + self._prepared.facts["deep"]

    def _build_tokens(self, trace: Trace, w: Scope, facts: Facts, part: int) -> Mapping[str, Traced]:
        from weft.nn.step import TracedStep

        step, module = TracedStep(trace, vectors=facts["merged"]), cast(Any, self._programs.module)
        made = module.projected(w, self.config, step) if part == 0 else module.deepened(w, self.config, step, part - 1)
        return {"tokens": made}

    def count_of(self, picture: Patched) -> int:
        """How many tokens of the text a picture is."""
        return len(picture.values) // self._prepared.facts["block"] ** 2

    def tokens_of(self, picture: Patched) -> tuple[np.ndarray, ...]:
        """What the text part reads in place of ids, float32 [count, hidden of the text]; then, of towers with deep
        stack, what it adds after its first layers."""
        found = self._hidden.run(self.step_of([picture]).arrays(self._prepared.inputs))
        names = ["hidden", *(f"deep.{index}" for index in range(self._parts - 1))]
        return tuple(self._tokens(found[name], picture, part) for part, name in enumerate(names))

    def _tokens(self, hidden: np.ndarray, picture: Patched, part: int) -> np.ndarray:
        """The tokens of hidden states of patches."""
        import numpy as np

        hidden = hidden.astype("f4", copy=False)[self._prepared.facts["class_tokens"] :]
        averaged = cast(Any, self._programs.module).MERGED == "averaged"
        blocks = in_blocks(hidden, picture.rows, picture.cols, self._prepared.facts["block"], averaged=averaged)
        prepared, executable = self._projections[part]
        step = build_step([np.zeros(len(blocks), np.int32)], rows=np.zeros(0, np.int32), vectors=blocks)
        found = executable.run(step.arrays(prepared.inputs))["tokens"]
        return cast("np.ndarray", found.astype("f4", copy=False))


def in_blocks(hidden: np.ndarray, rows: int, cols: int, side: int, *, averaged: bool) -> np.ndarray:
    """Squares of `side` x `side` patches of [rows x cols, hidden], row by row: their states one after another, or the
    mean of them, summed in that order."""
    import numpy as np

    size = hidden.shape[-1]
    blocks = hidden.reshape(rows // side, side, cols // side, side, size).transpose(0, 2, 1, 3, 4)
    blocks = np.ascontiguousarray(blocks).reshape(-1, side * side, size)
    if not averaged:
        return blocks.reshape(-1, side * side * size)
    total = blocks[:, 0].copy()
    for place in range(1, side * side):
        total += blocks[:, place]
    return total / np.float32(side * side)


def turns_of(rows: int, cols: int) -> np.ndarray:
    """Time, row and column of every patch, row by row, int32 [3, rows x cols]: a picture has one time."""
    import numpy as np

    row, col = np.divmod(np.arange(rows * cols, dtype=np.int32), cols)
    return np.stack([np.zeros_like(row), row, col])


def resized_positions(table: np.ndarray, rows: int, cols: int, shares: Shares) -> np.ndarray:
    """A square of positions [n, n, hidden] resized to [rows x cols, hidden], with these shares on either side."""
    import numpy as np

    down, across = shares(table.shape[0], rows), shares(table.shape[1], cols)
    wide = np.einsum("rh,cw,hwd->rcd", down, across, table.astype(np.float64), optimize=True)
    return wide.reshape(rows * cols, -1).astype(np.float32)


def corner_shares(size: int, to: int) -> np.ndarray:
    """The shares that each of `to` places has of `size` ones, float64 [to, size]: the places lie evenly from the first
    one to the last, and each has the two that it lies between."""
    import numpy as np

    places = np.linspace(0, size - 1, to, dtype=np.float32).astype(np.float64)[:, None]  # in float32, as upstream
    return cast("np.ndarray", np.maximum(1.0 - np.abs(np.arange(size)[None] - places), 0.0))


def bilinear_shares(size: int, to: int) -> np.ndarray:
    """The shares that each of `to` places has of `size` ones, float64 [to, size]: triangles as wide as the places that
    fall together, cut off at the ends."""
    import numpy as np

    scale = size / to
    wide = max(scale, 1.0)
    centres = (np.arange(to)[:, None] + 0.5) * scale
    shares = np.maximum(1.0 - np.abs(np.arange(size)[None] + 0.5 - centres) / wide, 0.0)
    return cast("np.ndarray", shares / shares.sum(axis=1, keepdims=True))
