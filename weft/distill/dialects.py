"""What three HTTP APIs want in a request and say in a reply: OpenAI's, Anthropic's and Gemini's.

A dialect is two pure functions and some facts; it opens nothing. `OpenAI` is also what most other servers speak.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from weft.errors import InputError
from weft.frozen import frozen

Message = Mapping[str, str]  # role (system, user or assistant) and content
ENDED, CUT, REFUSED = "stop", "length", "refused"


@frozen
class Settings:
    """What a teacher is asked with, beside the messages. `temperature` None is not sent, for models that refuse it."""

    model: str
    max_tokens: int = 256
    temperature: float | None = 0.0
    top_logprobs: int = 0


@frozen
class TokenChoice:
    """One token of a reply, and the log-probabilities of the most likely tokens in its place."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...]


@frozen
class Reply:
    """What a teacher wrote, why it ended, and what it says it has counted (None for a count that is missing)."""

    text: str
    finish: str  # ENDED, CUT or REFUSED
    input_tokens: int | None
    output_tokens: int | None
    choices: tuple[TokenChoice, ...] | None = None


class UnreadableError(ValueError):
    """A reply that does not have the form of its dialect."""


class OpenAI:
    """`POST {base}/chat/completions`."""

    name, key_flag, most_top = "openai", "OPENAI_API_KEY", 20
    home = "https://api.openai.com/v1"

    def path(self, settings: Settings) -> str:
        return "/chat/completions"

    def headers(self, key: str | None) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"} if key else {}

    def body(self, messages: Sequence[Message], settings: Settings, *, at_home: bool) -> dict[str, Any]:
        # OpenAI's own server refuses `max_tokens` for its reasoning models; most others know no other name.
        limit = "max_completion_tokens" if at_home else "max_tokens"
        made: dict[str, Any] = {"model": settings.model, "messages": [dict(one) for one in messages]}
        made[limit] = settings.max_tokens
        if settings.temperature is not None:
            made["temperature"] = settings.temperature
        if settings.top_logprobs:
            made |= {"logprobs": True, "top_logprobs": settings.top_logprobs}
        return made

    def read(self, body: bytes) -> Reply:
        found = _object(body)
        choice = _item(found, "choices", 0)
        message, usage = _field(choice, "message", dict), found.get("usage")
        refused = choice.get("finish_reason") == "content_filter" or message.get("refusal") is not None
        text = message.get("content")
        if not isinstance(text, str) and not refused:
            raise UnreadableError(f"choices[0].message.content is {type(text).__name__}, not a string")
        cut = choice.get("finish_reason") == "length"
        return Reply(
            text if isinstance(text, str) else "",
            REFUSED if refused else CUT if cut else ENDED,
            _count(usage, "prompt_tokens"),
            _count(usage, "completion_tokens"),
            self._choices(choice.get("logprobs")),
        )

    def _choices(self, given: Any) -> tuple[TokenChoice, ...] | None:
        if not isinstance(given, dict) or not isinstance(given.get("content"), list):
            return None
        made = []
        for one in given["content"]:
            top = [(_field(item, "token", str), _number(item, "logprob")) for item in _field(one, "top_logprobs", list)]
            made.append(TokenChoice(_field(one, "token", str), _number(one, "logprob"), tuple(top)))
        return tuple(made)


class Anthropic:
    """`POST {base}/v1/messages`. It gives no log-probabilities."""

    name, key_flag, most_top = "anthropic", "ANTHROPIC_API_KEY", 0
    home = "https://api.anthropic.com"
    version = "2023-06-01"

    def path(self, settings: Settings) -> str:
        return "/v1/messages"

    def headers(self, key: str | None) -> dict[str, str]:
        return {"anthropic-version": self.version, **({"x-api-key": key} if key else {})}

    def body(self, messages: Sequence[Message], settings: Settings, *, at_home: bool) -> dict[str, Any]:
        system, rest = _parted(messages)
        made: dict[str, Any] = {"model": settings.model, "max_tokens": settings.max_tokens}
        made["messages"] = [dict(one) for one in rest]
        if system:
            made["system"] = system
        if settings.temperature is not None:
            made["temperature"] = settings.temperature
        return made

    def read(self, body: bytes) -> Reply:
        found = _object(body)
        parts, usage = _field(found, "content", list), found.get("usage")
        texts = [_field(one, "text", str) for one in parts if isinstance(one, dict) and one.get("type") == "text"]
        why = found.get("stop_reason")
        if not texts and why not in ("refusal", "max_tokens"):
            raise UnreadableError("content has no part of type 'text'")
        counts = [_count(usage, "input_tokens"), _optional(usage, "cache_creation_input_tokens")]
        counts.append(_optional(usage, "cache_read_input_tokens"))
        return Reply(
            "".join(texts),
            REFUSED if why == "refusal" else CUT if why == "max_tokens" else ENDED,
            _sum(counts),
            _count(usage, "output_tokens"),
        )


class Gemini:
    """`POST {base}/v1beta/models/{model}:generateContent`."""

    name, key_flag, most_top = "gemini", "GEMINI_API_KEY", 20
    home = "https://generativelanguage.googleapis.com"
    refusals = ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "LANGUAGE")

    def path(self, settings: Settings) -> str:
        from urllib.parse import quote

        return f"/v1beta/models/{quote(settings.model, safe='')}:generateContent"

    def headers(self, key: str | None) -> dict[str, str]:
        return {"x-goog-api-key": key} if key else {}

    def body(self, messages: Sequence[Message], settings: Settings, *, at_home: bool) -> dict[str, Any]:
        system, rest = _parted(messages)
        roles = {"user": "user", "assistant": "model"}
        config: dict[str, Any] = {"maxOutputTokens": settings.max_tokens, "candidateCount": 1}
        if settings.temperature is not None:
            config["temperature"] = settings.temperature
        if settings.top_logprobs:
            config |= {"responseLogprobs": True, "logprobs": settings.top_logprobs}
        made: dict[str, Any] = {
            "contents": [{"role": roles[one["role"]], "parts": [{"text": one["content"]}]} for one in rest],
            "generationConfig": config,
        }
        if system:
            made["systemInstruction"] = {"parts": [{"text": system}]}
        return made

    def read(self, body: bytes) -> Reply:
        found = _object(body)
        usage = found.get("usageMetadata")
        # Tokens of thoughts are paid as output and counted apart.
        outputs = _sum([_count(usage, "candidatesTokenCount"), _optional(usage, "thoughtsTokenCount")])
        inputs = _count(usage, "promptTokenCount")
        feedback = found.get("promptFeedback")
        if isinstance(feedback, dict) and feedback.get("blockReason"):
            return Reply("", REFUSED, inputs, outputs)
        candidate = _item(found, "candidates", 0)
        why = candidate.get("finishReason")
        content = candidate.get("content")
        parts = content.get("parts", []) if isinstance(content, dict) else []
        texts = [one["text"] for one in parts if isinstance(one, dict) and isinstance(one.get("text"), str)]
        if not texts and why not in (*self.refusals, "MAX_TOKENS"):
            raise UnreadableError("candidates[0].content has no text")
        finish = REFUSED if why in self.refusals else CUT if why == "MAX_TOKENS" else ENDED
        return Reply("".join(texts), finish, inputs, outputs, self._choices(candidate.get("logprobsResult")))

    def _choices(self, given: Any) -> tuple[TokenChoice, ...] | None:
        if not isinstance(given, dict) or not isinstance(given.get("chosenCandidates"), list):
            return None
        made = []
        for one, beside in zip(given["chosenCandidates"], _field(given, "topCandidates", list)):
            tops = [(_field(i, "token", str), _number(i, "logProbability")) for i in _field(beside, "candidates", list)]
            made.append(TokenChoice(_field(one, "token", str), _number(one, "logProbability"), tuple(tops)))
        return tuple(made)


Dialect = OpenAI | Anthropic | Gemini
DIALECTS: dict[str, Dialect] = {made.name: made for made in (OpenAI(), Anthropic(), Gemini())}


def _parted(messages: Sequence[Message]) -> tuple[str, list[Message]]:
    """The system messages as one text, and the others."""
    system = "\n\n".join(one["content"] for one in messages if one["role"] == "system")
    rest = [one for one in messages if one["role"] != "system"]
    if not rest:
        raise InputError("distill", "must have a user's message beside the system's", field="messages")
    return system, rest


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UnreadableError(f"the body is {type(found).__name__}, not an object")
    return found


def _field(given: Any, name: str, kind: type) -> Any:
    value = given.get(name) if isinstance(given, dict) else None
    if not isinstance(value, kind):
        raise UnreadableError(f"{name} is {type(value).__name__}, not {kind.__name__}")
    return value


def _item(given: dict[str, Any], name: str, place: int) -> dict[str, Any]:
    items = _field(given, name, list)
    if len(items) <= place or not isinstance(items[place], dict):
        raise UnreadableError(f"{name} has no object at {place}")
    found: dict[str, Any] = items[place]
    return found


def _number(given: Any, name: str) -> float:
    value = given.get(name) if isinstance(given, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or value > 1e-3:
        raise UnreadableError(f"{name} is not a log-probability: {value!r:.40}")
    return float(value)


def _count(usage: Any, name: str) -> int | None:
    """A count of tokens; None for what is none, so that the worst case is charged."""
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if type(value) is int and value >= 0 else None


def _optional(usage: Any, name: str) -> int | None:
    """A count that replies may leave out."""
    return 0 if isinstance(usage, dict) and usage.get(name) is None else _count(usage, name)


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
