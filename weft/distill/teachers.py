"""Teachers by name: `openai:MODEL`, `anthropic:MODEL`, `gemini:MODEL`, `local:MODEL`, `file:PATH`.

A server is asked only if its host is allowed: the three providers' own, this machine, and hosts that the caller names.
Other machines than this one are asked over TLS. Keys are read from the environment and are written nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from weft import flags
from weft.distill.dialects import DIALECTS, Dialect, Message, OpenAI, Settings
from weft.embed.posting import Poster
from weft.errors import InputError, OfflineError, TooLongError, UnsupportedError
from weft.frozen import frozen
from weft.train.data.rows import Row, read_rows

KINDS = (*DIALECTS, "local", "file")
CHUNK = 16  # rows that a local model answers at once
ANSWERS = ("completion", "label", "answer", "output")  # fields of a file of answers


@frozen
class Named:
    """A teacher's kind and the model's name or path."""

    kind: str
    model: str

    @classmethod
    def read(cls, text: str) -> Named:
        kind, colon, model = text.partition(":")
        if not colon or kind not in KINDS or not model:
            what = f"must be one of {', '.join(f'{kind}:NAME' for kind in KINDS)}"
            raise InputError("distill", what, field="teacher", given=text)
        return cls(kind, model)


class Server:
    """A teacher behind HTTP: its dialect, address and key."""

    def __init__(
        self, named: Named, settings: Settings, base_url: str | None, key: str | None, allowed: Sequence[str]
    ) -> None:
        self.dialect: Dialect = DIALECTS[named.kind]
        self.settings = settings
        self.base_url = (base_url or self.dialect.home).rstrip("/")
        self.at_home = self.base_url == self.dialect.home
        check_host(self.base_url, allowed)
        if reason := flags.offline_reason():
            what = f"{self.base_url} cannot be asked: {reason} is set"
            raise OfflineError("distill", what, advice="unset it, or use a local teacher")
        if settings.top_logprobs > self.dialect.most_top:
            most = self.dialect.most_top
            what = f"must be at most {most}" if most else f"is not supported by {named.kind}, which gives none"
            raise InputError("distill", what, field="top_logprobs", given=settings.top_logprobs)
        self._key = self._given_key(key)

    def _given_key(self, named: str | None) -> str | None:
        """The key from the environment; the providers' own variables only go to the providers' own addresses."""
        flag = "WEFT_TEACHER_KEY" if not self.at_home else self.dialect.key_flag
        found = flags.get(flag) if named is None else named
        if found is None and self.at_home:
            raise InputError("distill", f"is required by {self.base_url}", field=flag, advice=f"set {flag}")
        return None if found is None else str(found)

    @property
    def local(self) -> bool:
        """Whether it runs on this machine, where nothing is paid."""
        return is_loopback(urlsplit(self.base_url).hostname or "")

    def poster(self, timeout_s: float) -> Poster:
        path = self.dialect.path(self.settings)
        return Poster(self.base_url, path, None, timeout_s, headers=self.dialect.headers(self._key))

    def data(self, messages: Sequence[Message]) -> bytes:
        body = self.dialect.body(messages, self.settings, at_home=self.at_home)
        return json.dumps(body, ensure_ascii=False, sort_keys=True).encode("utf-8", "surrogatepass")

    def key(self, data: bytes) -> str:
        """What the reply is kept under: server, path and body decide it; the API key does not."""
        return digest_of(self.dialect.name, self.base_url, self.dialect.path(self.settings), data)


class LocalModel:
    """A teacher that weft runs. Its answers are kept in OpenAI's form, with the ids of tokens beside."""

    dialect = OpenAI()

    def __init__(self, named: Named, settings: Settings, **options: Any) -> None:
        from weft.generate import load
        from weft.generate.request import MAX_LOGPROBS

        if settings.top_logprobs > MAX_LOGPROBS:
            what = f"must be at most {MAX_LOGPROBS}"
            raise InputError("distill", what, field="top_logprobs", given=settings.top_logprobs)
        self.settings = settings
        self.model = load(named.model, **options)
        self.identity = json.dumps(
            [named.model, settings.max_tokens, settings.temperature, settings.top_logprobs, self._digest()]
        )

    def _digest(self) -> str:
        from weft.train.kept import base_digest

        return base_digest(self.model.decoder.checkpoint)

    def key(self, messages: Sequence[Message]) -> str:
        return digest_of("local", self.identity, json.dumps([dict(one) for one in messages]).encode())

    def answers(self, asks: Sequence[Sequence[Message]]) -> Iterator[bytes | TooLongError]:
        """The answer to each conversation, in order, or why it is too long to be asked; CHUNK at once."""
        for first in range(0, len(asks), CHUNK):
            yield from self._chunk(asks[first : first + CHUNK])

    def _chunk(self, asks: Sequence[Sequence[Message]]) -> Iterator[bytes | TooLongError]:
        ids = [self.prompt_ids(messages) for messages in asks]
        top, found = self.settings.top_logprobs, list[Any]()
        try:
            found = self._generated(ids)
        except TooLongError:  # one of them is
            for prompt in ids:
                try:
                    found += self._generated([prompt])
                except TooLongError as error:
                    found.append(error)
        for prompt, one in zip(ids, found, strict=True):
            if isinstance(one, TooLongError):
                yield one
                continue
            choice: dict[str, Any] = {"finish_reason": one.finish_reason, "message": {"content": one.text.strip()}}
            weft: dict[str, Any] = {"prompt": list(prompt), "tokens": list(one.tokens)}
            if top:
                weft |= {"text": self.model.tokenizer.decode([*prompt, *one.tokens], skip_special=False)}
                weft |= {} if self._end is None else {"end": self._end}
                weft["top"] = [[[id, round(value, 6)] for id, value in each.top] for each in one.logprobs or ()]
            usage = {"prompt_tokens": one.usage.prompt_tokens, "completion_tokens": one.usage.completion_tokens}
            yield json.dumps({"choices": [choice], "usage": usage, "weft": weft}, ensure_ascii=False).encode()

    def _generated(self, prompts: list[Sequence[int]]) -> list[Any]:
        how = self.settings
        more: dict[str, Any] = {"stop_ids": self.model.answer_ends} if self._chats else {}
        more |= {"logprobs": how.top_logprobs} if how.top_logprobs else {}
        more |= {"max_tokens": how.max_tokens, "temperature": how.temperature or 0.0}
        return list(self.model.generate(prompts, **more))

    @property
    def _end(self) -> int | None:
        """The token that ends an answer."""
        return next(iter(self.model.answer_ends if self._chats else ()), self.model.tokenizer.eos_id)

    @property
    def _chats(self) -> bool:
        try:
            return self.model.chat_template is not None
        except UnsupportedError:
            return False

    def prompt_ids(self, messages: Sequence[Message]) -> Sequence[int]:
        if self._chats:
            return self.model.chat_ids(messages)
        if len(messages) != 1:
            what = "must be one text: the model has no chat template for a conversation or a system message"
            raise InputError("distill", what, field="messages")
        return self.model.prompt_ids(messages[0]["content"])


class Answers:
    """A teacher that is a file: rows with an `id`, or the question's own text, and an answer."""

    def __init__(self, named: Named) -> None:
        self.path = Path(named.model)
        self._by_id: dict[str, str] = {}
        self._by_text: dict[str, str] = {}
        self._chances: dict[str, Any] = {}  # by the answer's question: probabilities of labels, where the file has them
        for row in read_rows(self.path):
            answer = next((row.fields[name] for name in ANSWERS if isinstance(row.fields.get(name), str)), None)
            if answer is None:
                raise row.fault(f"has no answer: none of {', '.join(ANSWERS)} (it has {row.named_fields})")
            texts = [row.fields[name] for name in ("text", "prompt", "input", "question") if name in row.fields]
            if "id" in row.fields:
                self._keep(self._by_id, str(row.fields["id"]), answer, row)
                self._chances[f"id {row.fields['id']}"] = row.fields.get("probabilities")
            elif texts and isinstance(texts[0], str):
                self._keep(self._by_text, texts[0], answer, row)
                self._chances[f"text {texts[0]}"] = row.fields.get("probabilities")
            else:
                raise row.fault(f"has no `id`, `text` or `prompt` to know its question by (it has {row.named_fields})")

    def _keep(self, where: dict[str, str], key: str, answer: str, row: Row) -> None:
        if where.setdefault(key, answer) != answer:
            raise row.fault("answers a question differently that an earlier row has", given=key)

    def probabilities(self, fields: Mapping[str, Any]) -> Any:
        """What the file says of all labels of a row, as `weft classify --all` prints it; None if nothing."""
        own = [f"id {fields['id']}"] if "id" in fields else []
        own += [f"text {fields[name]}" for name in ("text", "prompt", "input", "question") if name in fields]
        return next((self._chances[name] for name in own if self._chances.get(name) is not None), None)

    def answer(self, fields: Mapping[str, Any], asked: str) -> str | None:
        if "id" in fields and str(fields["id"]) in self._by_id:
            return self._by_id[str(fields["id"])]
        return self._by_text.get(asked)


def check_host(url: str, allowed: Sequence[str]) -> None:
    """Refuse an address that the caller has not allowed, or that is not encrypted on its way to another machine."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("http", "https"):
        raise InputError("distill", "must be http:// or https:// and a host", field="base_url", given=url)
    homes = {str(urlsplit(one.home).hostname) for one in DIALECTS.values()}
    if is_loopback(host):
        return
    if host not in homes and host not in {name.lower() for name in allowed}:
        what = f"{host} is not a host that weft may send your data to"
        raise InputError("distill", what, field="base_url", given=url, advice=f"allow it with --allow-host {host}")
    if parts.scheme != "https":
        what = (
            "must be https:// for a server that is not this machine: texts and the key would be readable on their way"
        )
        raise InputError("distill", what, field="base_url", given=url)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def digest_of(*parts: str | bytes) -> str:
    from weft import digest

    hashed = sha256()
    digest.add(hashed, *parts)
    return hashed.hexdigest()
