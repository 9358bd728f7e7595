"""The bodies of OpenAI's routes. Numbers have ranges; fields whose default is None may be null, as clients send them.

A field that is not here is treated as `fields/client_settings.py` says, or refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

MAX_MESSAGES, MAX_PARTS, MAX_TOOLS = 2048, 256, 128
MAX_ANSWERS, MAX_PROMPTS = 8, 64

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Count = Annotated[int, Meta(ge=0, le=1 << 24)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
TokenId = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Bias = dict[str, Annotated[float, Meta(ge=-100.0, le=100.0)]]
StopText = Annotated[str, Meta(min_length=1, max_length=256)]
Stop = StopText | Annotated[list[StopText], Meta(max_length=16)]
Truncate = Literal["left", "right", "middle"]
ShortText = Annotated[str, Meta(max_length=512)]
KeepAlive = ShortText | float
Metadata = Annotated[dict[str, str], Meta(max_length=64)]


class StreamOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class StructuredOutputs(Struct, forbid_unknown_fields=True, kw_only=True):
    """vLLM's structured outputs; exactly one field may be set."""

    json: dict[str, Any] | str | bool | None = None
    regex: str | None = None
    choice: Annotated[list[str], Meta(max_length=10_000)] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class JsonSchema(Struct, forbid_unknown_fields=True, kw_only=True):
    schema: dict[str, Any] | bool | None = None
    name: ShortText | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None  # llama-server takes it here


class Sampled(Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields that chat and completions share: how tokens are chosen, and when to stop."""

    model: Name
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] | None = None
    top_p: Share | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_ANSWERS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[Bias, Meta(max_length=1024)] | None = None
    response_format: ResponseFormat | None = None
    # beyond OpenAI: vLLM's names
    top_k: Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] | None = None
    min_p: Share | None = None
    typical_p: Share | None = None
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=100.0)] | None = None
    min_tokens: Count | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=128)] | None = None
    ignore_eos: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | bool | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Meta(max_length=10_000)] | None = None
    guided_grammar: str | None = None
    cache_salt: ShortText | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    # weft's own
    truncate: Truncate | None = None
    adapter: Name | None = None
    speculate: bool | None = None
    reasoning_budget: Count | None = None
    prefix_cache: bool | None = None
    keep_alive: KeepAlive | None = None  # as in Ollama's API: how long the model stays loaded when idle


class ImageUrl(Struct, kw_only=True):
    url: str
    detail: ShortText | None = None


class Part(Struct, kw_only=True):
    """A part of a message's content; parts other than texts and pictures are refused by their type."""

    type: ShortText
    text: str | None = None
    image_url: str | ImageUrl | None = None
    refusal: str | None = None


class FunctionCall(Struct, kw_only=True):
    name: Name
    arguments: str | dict[str, Any] = "{}"


class ToolCall(Struct, kw_only=True):
    function: FunctionCall
    id: ShortText | None = None
    type: Literal["function"] = "function"
    index: Count | None = None


class Message(Struct, forbid_unknown_fields=True, kw_only=True):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[Part], Meta(max_length=MAX_PARTS)] | None = None
    name: ShortText | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=MAX_TOOLS)] | None = None
    tool_call_id: ShortText | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    # fields of OpenAI's answers, which clients send back
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: FunctionCall | None = None


class Function(Struct, forbid_unknown_fields=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, forbid_unknown_fields=True, kw_only=True):
    function: Function
    type: Literal["function"] = "function"


class NamedFunction(Struct, kw_only=True):
    name: Name


class NamedTool(Struct, forbid_unknown_fields=True, kw_only=True):
    function: NamedFunction
    type: Literal["function"] = "function"


class ChatRequest(Sampled, forbid_unknown_fields=True, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=32)] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    # the older form of tools; the answer has the older form too
    functions: Annotated[list[Function], Meta(max_length=MAX_TOOLS)] | None = None
    function_call: Literal["auto", "none"] | NamedFunction | None = None


Ids = Annotated[list[TokenId], Meta(min_length=1, max_length=1 << 20)]


class CompletionRequest(Sampled, forbid_unknown_fields=True, kw_only=True):
    prompt: str | Annotated[list[TokenId | str | Ids], Meta(min_length=1, max_length=1 << 20)]
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    add_special_tokens: bool | None = None
    parse_special: bool | None = None  # False: special tokens written in the prompt are plain text
    skip_special_tokens: bool | None = None
    suffix: Annotated[str, Meta(max_length=1 << 20)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_ANSWERS)] | None = None


EMBEDDED = Meta(min_length=1, max_length=1 << 20)


class EmbeddingItem(Struct, forbid_unknown_fields=True, kw_only=True):
    """A text or a picture: {"text": …}, {"image": …} as Jina and Azure have it, or a part of a chat's content."""

    text: str | None = None
    image: str | None = None
    image_url: str | ImageUrl | None = None
    type: Literal["text", "image", "image_url", "input_text", "input_image"] | None = None


class EmbeddingRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    model: Name
    input: str | EmbeddingItem | Annotated[list[TokenId | str | Ids | EmbeddingItem], EMBEDDED]
    modality: Literal["text", "image"] | None = None  # Infinity's: what strings are
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=1 << 16)] | None = None
    # weft's own
    truncate: Literal["head", "tail"] | None = None  # the part that is kept
    prompt: Annotated[str, Meta(max_length=4096)] | None = None
    prompt_name: ShortText | None = None
    adapter: Name | None = None
