"""The bodies of the routes for training."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from weft.serve.openai.schemas import Name

MAX_ROWS = 100_000

RunName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")]
Positive = Annotated[int, Meta(ge=1, le=1 << 24)]


class Settings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of `weft train`, under its names; what is left out has its default."""

    rank: Annotated[int, Meta(ge=1, le=256)] | None = None
    alpha: Annotated[float, Meta(gt=0)] | None = None
    lr: Annotated[float, Meta(gt=0)] | None = None
    schedule: Literal["constant", "linear", "cosine"] | None = None
    warmup: Annotated[float, Meta(ge=0, le=1)] | None = None
    epochs: Positive | None = None
    steps: Positive | None = None
    batch_tokens: Positive | None = None
    max_length: Positive | None = None
    too_long: Literal["error", "cut", "split", "drop"] | None = None
    loss: Literal["assistant", "completion", "all"] | None = None
    patience: Annotated[int, Meta(ge=0, le=1000)] | None = None
    seed: Annotated[int, Meta(ge=0, le=1 << 62)] | None = None


class RegisterRequest(Struct, forbid_unknown_fields=True, kw_only=True, rename={"name": "as"}):
    """Keep a run's adapter as a version of a name in the registry; `as` is by default the run's name."""

    version: Name
    name: Name | None = None


class RunRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Start a run. Of the rows a part `held_out` is not learnt: the base and the adapter are compared on it."""

    name: RunName
    model: Name
    rows: Annotated[list[dict[str, Any]], Meta(min_length=2, max_length=MAX_ROWS)]
    kind: Literal["lora", "dpo"] = "lora"
    held_out: Annotated[float, Meta(ge=0.0, le=0.5)] = 0.1
    settings: Settings = Settings()
