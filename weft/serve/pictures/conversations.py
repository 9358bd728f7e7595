"""Pictures in conversations: read for a model that sees, refused for one that does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from weft.errors import WeftError
from weft.serve.http.faults import Fault, invalid
from weft.serve.pictures.reading import Sent, check_source, read_picture, unreadable

if TYPE_CHECKING:
    from weft.serve.http.routes import Context
    from weft.serve.models.generator import GenerateRunner

MOST = 64  # pictures of a conversation
Messages = Sequence[Mapping[str, Any]]


def image_part(sent: Sent) -> dict[str, Any]:
    """A part of a message's content that is a picture."""
    return {"type": "image", "image": sent}


def sent_in(messages: Messages) -> list[Sent]:
    """The pictures of a conversation, in order."""
    parts = (part for one in messages if isinstance(one.get("content"), list) for part in one["content"])
    return [part["image"] for part in parts if part["type"] == "image"]


async def with_pictures(context: Context, runner: GenerateRunner, messages: Messages) -> Messages:
    """The messages with the bytes of their pictures."""
    sent = sent_in(messages)
    if not sent:
        return messages
    if not runner.sees:
        raise _blind(sent[0].part)
    if len(sent) > MOST:
        raise invalid(f"is picture {MOST + 1}; at most {MOST} are allowed in a conversation", sent[MOST].where)
    for one in sent:
        check_source(context, one)
    files = iter([await read_picture(context, one) for one in sent])

    def read(part: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**part, "image": next(files)} if part["type"] == "image" else part

    return [
        {**one, "content": [read(part) for part in one["content"]]} if isinstance(one.get("content"), list) else one
        for one in messages
    ]


def _blind(part: str) -> Fault:
    if part.endswith(".type"):
        return invalid("is an image; this model takes no images", part, code="no_images")
    return Fault(400, f"{part}: this model takes no images", param=part, code="no_images")


@contextmanager
def blaming_pictures(sent: Sequence[Sent]) -> Iterator[None]:
    """Name the field of a picture that cannot be decoded."""
    try:
        yield
    except WeftError as error:
        if error.field != "picture" or error.index is None or error.index >= len(sent):
            raise
        raise unreadable(error.but(index=None), sent[error.index].where) from None
