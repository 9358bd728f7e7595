"""A picture as a request has it, and its bytes. Whatever is wrong with it is the fault of the field that has it."""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import TYPE_CHECKING, Any

from weft.errors import WeftError
from weft.frozen import frozen
from weft.pictures import picture_bytes
from weft.serve.http.faults import Fault, blaming, invalid

if TYPE_CHECKING:
    from weft.serve.http.routes import Context

REFUSED = "invalid_image"  # the code of a picture that cannot be read


@frozen
class Sent:
    """A picture of a request: a data: URL, base64 alone, or an address. `where` is the field that has it, `part` the
    field that says that it is one."""

    source: str
    where: str
    part: str = ""

    @property
    def address(self) -> bool:
        return "://" in self.source[:16]


def is_data_url(given: Any) -> bool:
    """Whether a string is a data: URL of an image, and not a text."""
    return isinstance(given, str) and given[:11].lower() == "data:image/" and ";base64," in given[:100]


def check_source(context: Context, sent: Sent) -> None:
    """Refuse what can be refused before anything is fetched or decoded."""
    if not sent.source:
        raise invalid("must not be empty", sent.where, code=REFUSED)
    if sent.address:
        context.serving.fetcher.check(sent.source, sent.where)


async def read_picture(context: Context, sent: Sent) -> bytes:
    """The bytes of a picture's file."""
    if sent.address:
        return await context.serving.fetcher.fetch(sent.source, sent.where)
    limits = context.serving.settings.limits.of_pictures
    try:
        if sent.source[:5].lower() == "data:":
            return picture_bytes(sent.source, limits)
        limits.check_bytes(len(sent.source) * 3 // 4 - 2)
    except WeftError as error:
        raise unreadable(error, sent.where) from None
    try:
        return b64decode("".join(sent.source.split()), validate=True)
    except (binascii.Error, ValueError):
        what = "must be a data: URL of an image, its bytes in base64, or an address that begins with https://"
        raise invalid(what, sent.where, code=REFUSED) from None


def unreadable(error: WeftError, where: str) -> Fault:
    """The fault of a picture that the library refuses."""
    return blaming(where, error.but(where="", field="the picture"), code=REFUSED)
