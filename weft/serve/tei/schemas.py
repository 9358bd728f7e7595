"""The bodies of TEI's routes and of reranking. Without `model`, the first embedder is used."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from weft.serve.openai.schemas import Ids, Name, ShortText

Texts = Annotated[list[str], Meta(min_length=1, max_length=1 << 20)]
OneOrTwo = Annotated[list[str], Meta(min_length=1, max_length=2)]


class EmbedRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    inputs: str | Annotated[list[str | Ids], Meta(min_length=1, max_length=1 << 20)]
    model: Name | None = None
    truncate: bool | None = None
    truncation_direction: Literal["Right", "Left", "right", "left"] | None = None
    normalize: bool | None = None
    prompt_name: ShortText | None = None
    dimensions: Annotated[int, Meta(ge=1, le=1 << 16)] | None = None


class EmbedAllRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    inputs: str | Annotated[list[str | Ids], Meta(min_length=1, max_length=1 << 20)]
    model: Name | None = None
    truncate: bool | None = None
    truncation_direction: Literal["Right", "Left", "right", "left"] | None = None
    prompt_name: ShortText | None = None


class PredictRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """`inputs` is a text, a list of one or two texts that are read together, or a list of such lists."""

    inputs: str | Annotated[list[str | OneOrTwo], Meta(min_length=1, max_length=1 << 20)]
    model: Name | None = None
    raw_scores: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["Right", "Left", "right", "left"] | None = None


class Pooled(Struct, forbid_unknown_fields=True, kw_only=True):
    """What vLLM's bodies of classifying and scoring share; `activation` is the older name of `use_activation`."""

    model: Name | None = None
    use_activation: bool | None = None
    activation: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["Right", "Left", "right", "left"] | None = None
    truncate_prompt_tokens: Literal[-1] | None = None


class ClassifyRequest(Pooled, forbid_unknown_fields=True, kw_only=True):
    input: str | Texts


class ScoreRequest(Pooled, forbid_unknown_fields=True, kw_only=True):
    """The two sides of pairs, under the names of vLLM's versions."""

    text_1: str | Texts | None = None
    text_2: str | Texts | None = None
    queries: str | Texts | None = None
    documents: str | Texts | None = None
    data_1: str | Texts | None = None
    data_2: str | Texts | None = None


class Sentences(Struct, forbid_unknown_fields=True, kw_only=True):
    source_sentence: str
    sentences: Texts


class SimilarityParameters(Struct, forbid_unknown_fields=True, kw_only=True):
    truncate: bool | None = None
    truncation_direction: Literal["Right", "Left", "right", "left"] | None = None
    prompt_name: ShortText | None = None


class SimilarityRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    inputs: Sentences
    parameters: SimilarityParameters | None = None
    model: Name | None = None


class Document(Struct, kw_only=True):
    text: str


class RerankRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Jina's and Cohere's body has `documents`, TEI's has `texts`; either may use the fields of both."""

    query: str
    documents: Annotated[list[str | Document], Meta(min_length=1, max_length=1 << 20)] | None = None
    texts: Texts | None = None
    model: Name | None = None
    top_n: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    raw_scores: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["Right", "Left", "right", "left"] | None = None
    max_tokens_per_doc: Annotated[int, Meta(ge=1, le=1 << 24)] | None = None
