"""The bodies of /v1/registry."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Text = Annotated[str, Meta(min_length=1, max_length=200)]
Metrics = Annotated[dict[Text, float], Meta(min_length=1, max_length=100)]
Part = Annotated[float, Meta(ge=0, le=1)]
Least = Annotated[float, Meta(ge=0)]


class PromoteRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """`version` is a version, an alias or `latest`."""

    version: Text
    alias: Text = "production"
    force: bool = False


class RollbackRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    alias: Text = "production"


class EvaluateRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    version: Text
    metrics: Metrics
    data: Annotated[str, Meta(max_length=1000)] = ""


class ShadowRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """`candidate` is a version or an alias; the limits are those of `weft registry shadow`."""

    candidate: Text = "candidate"
    share: Part | None = None
    samples: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    min_agreement: Part | None = None
    max_difference: Least | None = None
    max_slower_ms: Least | None = None
    max_errors: Annotated[int, Meta(ge=0, le=1_000_000_000)] | None = None
    timeout_s: Annotated[float, Meta(ge=0.001, le=3600)] | None = None
