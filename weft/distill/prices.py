"""What a request can cost at most, and what it did cost: whole picounits (10^-12) of a currency, so sums are exact."""

from __future__ import annotations

import json
import math
import os
import unicodedata
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from weft.distill.dialects import Message, Reply
from weft.errors import InputError, NotFoundError
from weft.frozen import frozen

PICO = 10**12
PER = 10**6  # prices are those of a million tokens, as providers write them
MESSAGE_TOKENS = 32  # more than any chat template puts around a message
REQUEST_TOKENS = 64  # and around a conversation
TOKEN_BYTES = 128  # a longer token is in no vocabulary: a count below text bytes / this is not believed


@frozen
class Price:
    """The price of a token in and of a token out, in picounits."""

    input: int
    output: int

    @classmethod
    def per_million(cls, input: Any, output: Any) -> Price:
        """From prices of a million tokens, rounded up to whole picounits a token."""
        return cls(*(math.ceil(money(one, name) / PER) for one, name in ((input, "input"), (output, "output"))))

    @property
    def free(self) -> bool:
        return not (self.input or self.output)

    def of(self, input_tokens: int, output_tokens: int) -> int:
        return input_tokens * self.input + output_tokens * self.output


@frozen
class Worst:
    """The most tokens that a request can take, and its price then."""

    input_tokens: int
    output_tokens: int
    cost: int


@frozen
class Bill:
    """What a reply is charged with; `overrun` if it says more than the worst case."""

    cost: int
    input_tokens: int
    output_tokens: int
    believed: bool
    overrun: bool


def money(given: Any, field: str) -> int:
    """Picounits of an amount such as 0.15 or "0.15", rounded up."""
    try:
        amount = Decimal(str(given))
        if isinstance(given, bool) or not amount.is_finite() or not 0 <= amount <= 10**6:
            raise InvalidOperation
    except InvalidOperation:
        what = "must be an amount of money from 0 to a million, such as 0.15"
        raise InputError("distill", what, field=field, given=given) from None
    return math.ceil(amount * PICO)


def shown(amount: int) -> str:
    """An amount for people: at least two decimals, and as many as show it."""
    text = f"{Decimal(amount) / PICO:.6f}".rstrip("0")
    whole, _, part = text.partition(".")
    return f"{whole}.{part:0<2}"


def worst_case(messages: Sequence[Message], max_tokens: int, price: Price) -> Worst:
    """The most that a request can cost.

    A token stands for at least one byte of text, so there are at most as many as bytes; a tokenizer may normalise the
    text first, and NFKC makes some characters longer.
    """
    inputs = REQUEST_TOKENS
    for one in messages:
        text = one["content"]
        sizes = [len(text.encode("utf-8", "surrogatepass"))]
        sizes += [] if text.isascii() else [len(unicodedata.normalize("NFKC", text).encode("utf-8", "surrogatepass"))]
        inputs += MESSAGE_TOKENS + max(sizes)
    return Worst(inputs, max_tokens, price.of(inputs, max_tokens))


def bill(reply: Reply, messages: Sequence[Message], worst: Worst, price: Price) -> Bill:
    """What the reply costs by its own counts; the worst case where they are missing or cannot be true."""
    inputs, outputs = reply.input_tokens, reply.output_tokens
    asked = sum(len(one["content"].encode("utf-8", "surrogatepass")) for one in messages)
    said = len(reply.text.encode("utf-8", "surrogatepass"))
    if inputs is None or outputs is None or inputs * TOKEN_BYTES < asked or outputs * TOKEN_BYTES < said:
        return Bill(worst.cost, worst.input_tokens, worst.output_tokens, believed=False, overrun=False)
    cost = price.of(inputs, outputs)
    over = inputs > worst.input_tokens or outputs > worst.output_tokens
    return Bill(max(cost, worst.cost) if over else cost, inputs, outputs, believed=not over, overrun=over)


def read_prices(path: str | os.PathLike[str], model: str) -> Price:
    """The price of `model` in a file of prices: {"model": {"input": 0.15, "output": 0.6}}, of a million tokens."""
    file = Path(path)
    try:
        table = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise NotFoundError("distill", f"there is no file {file}", field="prices") from None
    except (ValueError, RecursionError) as error:
        raise InputError(file.name, f"is not JSON: {error}") from None
    found = table.get(model) if isinstance(table, dict) else None
    if not isinstance(found, Mapping) or not {"input", "output"} <= found.keys():
        what = f"has no input and output price of {model}"
        example = json.dumps({model: {"input": 0.15, "output": 0.6}})
        raise InputError(file.name, what, advice=f"write {example}, for a million tokens each")
    return Price.per_million(found["input"], found["output"])
