"""Where chat templates run: jinja2's immutable sandbox, set up as in transformers, with limits on work and size.

A template is code from a model's files. The sandbox keeps it away from Python's internals and from changing what it was
given. Three limits keep it from taking the machine: steps (loop rounds, calls, elements given to filters) and processor
time for the whole rendering, and the size of any one value. They need no thread and no signal: every loop, call,
filter and concatenation passes through here.
"""

import json
import re
import time
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache, wraps
from math import prod
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from weft.errors import FormatError, InputError

SOURCE_LIMIT = 256 << 10
SIZE_LIMIT = 4 << 20  # characters of the output, and elements of any one value on the way
INTEGER_BITS = 256
STEP_LIMIT = 10_000_000
TIME_LIMIT_S = 5.0

# Functions whose result can be longer than all they were given together: as methods of strings, and as filters.
_MULTIPLYING = frozenset(
    ("batch", "center", "expandtabs", "format", "indent", "join", "ljust", "replace", "rjust", "slice", "zfill")
)
# Filters that look at no element of what they are given, or at one.
_CONSTANT_TIME = frozenset(("count", "d", "default", "first", "last", "length"))
_REFUSED = frozenset(("to_bytes", "translate"))  # methods of numbers and strings that can make any length of anything
_VIEWS = (KeysView, ValuesView, ItemsView)
# A field width of five digits or one that is computed; with those a format string makes any length.
_WIDE_FORMAT = re.compile(r"\d{5}|%[^a-zA-Z%]*\*|\{[^{}]*\{")


class _Budget:
    """What one rendering may still do."""

    def __init__(self) -> None:
        self.steps = STEP_LIMIT
        self.ends_s = time.thread_time() + TIME_LIMIT_S

    def spend(self, steps: int = 1) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise InputError(f"[chat template] rendering was stopped: it takes more than {STEP_LIMIT} steps")
        if time.thread_time() > self.ends_s:
            raise InputError(f"[chat template] rendering was stopped: it takes more than {TIME_LIMIT_S:g} s")


_budget: ContextVar[_Budget] = ContextVar("weft_template_budget")


@contextmanager
def budget() -> Iterator[None]:
    """Limits for the renderings in the block."""
    token = _budget.set(_Budget())
    try:
        yield
    finally:
        _budget.reset(token)


def _spend(steps: int = 1) -> None:
    found = _budget.get(None)  # none while jinja2 evaluates constants at compile time: the source is short
    if found is not None:
        found.spend(steps)


def _size(value: Any) -> int:
    """How much a value multiplies: a whole number by itself, a collection by its length."""
    if isinstance(value, int):
        return abs(value)
    return len(value) if isinstance(value, str | bytes | list | tuple | dict | range) else 1


def _bound(size: int) -> None:
    if size > SIZE_LIMIT:
        raise InputError(f"[chat template] a value is too long: over {SIZE_LIMIT} characters or elements")


def _weight(value: Any, seen: dict[int, tuple[int, Any]]) -> int:
    """Characters and elements of a value written out, in time that follows what it takes in memory.

    A list that holds another one twice is small however often that is repeated; written out, or compared with its like,
    it is not.
    """
    if isinstance(value, str | bytes):
        return len(value) + 1
    if isinstance(value, Namespace):
        value = object.__getattribute__(value, "_Namespace__attrs")
    if not isinstance(value, (list, tuple, dict, *_VIEWS)):
        return 1
    if id(value) not in seen:
        items = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
        seen[id(value)] = 1 + sum(_weight(item, seen) for item in items), items  # kept alive, or an id could come again
    return seen[id(value)][0]


def _weigh(*values: Any) -> None:
    for value in values:
        if not isinstance(value, str | int | float):
            _bound(_weight(value, {}))


def _weighed(value: Any) -> Any:
    _weigh(value)
    return value


def _bounded(result: Any) -> Any:
    if isinstance(result, str | list | tuple | dict):
        _bound(len(result))
    return result


def _growth(name: str, values: tuple[Any, ...]) -> int:
    """A bound on the length that a multiplying function adds to what it was given, `values`, in positional order."""
    match values:
        case [str(text), str(old), str(new), *_] if name == "replace":
            return (len(text) // max(1, len(old)) + 1) * len(new)
        case [str(text), int(width), *_] if name == "indent":
            return text.count("\n") * abs(width)
        case _:
            return prod(max(1, _size(value)) for value in values)


def _check_call(name: str, values: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Refuse a call whose result could be out of proportion to what the template was given."""
    if name in _REFUSED:
        raise SecurityError(f"the method {name}")
    if name not in _MULTIPLYING:
        return
    _bound(_growth("" if named else name, (*values, *named.values())))
    if name == "format" and isinstance(values[0], str):
        _check_format(values[0])


def _check_format(form: str) -> None:
    if _WIDE_FORMAT.search(form):
        raise SecurityError("a format string with a field width of five digits or a computed one")


class _Metered(NodeTransformer):
    """Puts the meters into a template: loops pay for all they go over and look at the clock, `~` is `joined`.

    What is compared is weighed, because comparing goes through everything that two values hold.
    """

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _method("metered", node.iter)
        node.body.insert(0, nodes.ExprStmt(_method("clocked")))
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        parts: list[Any] = [node, *node.ops]
        for part in parts:
            if not isinstance(part.expr, nodes.Const):
                part.expr = _method("weighed", part.expr)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _method("joined", *node.nodes)


def _method(name: str, *arguments: Any) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(arguments), [], None, None)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of every chat template."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _Metered().visit(super()._parse(source, name, filename))

    def metered(self, values: Any) -> Any:
        """What a loop goes over, paid for."""
        if not hasattr(values, "__len__"):
            values = list(values)
        _spend(len(values))
        return values

    def weighed(self, value: Any) -> Any:
        """One side of a comparison."""
        return _weighed(value)

    def clocked(self) -> None:
        """The beginning of a loop's round."""
        _spend(0)

    def joined(self, *values: Any) -> str:
        """The `~` operator."""
        _weigh(*values)
        return self.concat(str(value) for value in values)

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """What a block, a macro or a `~` wrote, as one text."""
        texts = list(pieces)
        _bound(sum(map(len, texts)))
        return "".join(texts)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # a template may give `self`
        _spend()
        if getattr(__obj, "__self__", None) is not __self:  # else one of the meters
            owner = getattr(__obj, "__self__", None)
            _weigh(owner, *args, *kwargs.values())
            _check_call(getattr(__obj, "__name__", ""), (owner, *args), kwargs)
        return _bounded(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _spend()
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > INTEGER_BITS:
                raise InputError(f"[chat template] a whole number is too large: over {INTEGER_BITS} bits")
        elif operator == "*":
            _bound(_size(left) * _size(right))
        elif operator == "+" and not isinstance(left, int) and not isinstance(right, int):
            _bound(_size(left) + _size(right))
        elif operator == "%" and isinstance(left, str):
            _weigh(right)
            _check_format(left)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__)
        return wrapped


class _Generation(Extension):
    """{% generation %} marks what the assistant said, for training; here it only holds its body."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """`dict(…)` in a template, without the class and what hangs on it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """`namespace(…)` in a template; names that begin with an underscore are refused."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _Namespace._check(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _Namespace._check(name)  # an attribute of `self` is one that the template stored
        Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace cannot hold {name!r}")


def _metered_test(function: Any) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any) -> Any:
        _weigh(*args)
        return function(*args)

    return call


def _metered_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)  # jinja2 reads the attributes that say what a filter wants as its first argument
    def call(*args: Any, **kwargs: Any) -> Any:
        values = args[1:] if hasattr(function, "jinja_pass_arg") else args
        _spend(1 if isinstance(values[0], str | int) else 1 + _size(values[0]))
        if name not in _CONSTANT_TIME:
            _weigh(*values, *kwargs.values())
        _check_call(name, values, kwargs)
        return _bounded(function(*args, **kwargs))

    return call


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if _size(indent) > 16:
        raise InputError(f"[chat template] tojson with an indent of {_size(indent)}; 16 is the most")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _reject(message: str) -> None:
    raise InputError(f"[chat template] the template rejects these messages: {message}")


def _time_now(form: str) -> str:
    return datetime.now().strftime(form)


@lru_cache(maxsize=1)
def _environment() -> Sandbox:
    extensions = [loopcontrols, _Generation]
    sandbox = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=extensions, autoescape=False, finalize=_weighed)
    sandbox.filters["tojson"] = _to_json
    sandbox.filters = {name: _metered_filter(name, function) for name, function in sandbox.filters.items()}
    for name in ("eq", "==", "equalto", "ne", "!=", "in", "lt", "<", "lessthan", "le", "<=", "gt", ">", "ge", ">="):
        sandbox.tests[name] = _metered_test(sandbox.tests[name])
    sandbox.globals.update(raise_exception=_reject, strftime_now=_time_now, dict=_Dict(), namespace=_Namespace)
    del sandbox.globals["lipsum"]
    return sandbox


@lru_cache(maxsize=32)
def compiled(source: str) -> Any:
    """The template of `source`, whose `generate` gives its output in pieces."""
    if len(source.encode("utf-8", "surrogatepass")) > SOURCE_LIMIT:
        raise FormatError(f"[chat template] the source is too long: over {SOURCE_LIMIT} bytes")
    try:
        return _environment().from_string(source)
    except (TemplateError, RecursionError, SyntaxError, ValueError) as error:
        raise FormatError(f"[chat template] malformed: {error}") from error
