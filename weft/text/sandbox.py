"""Runs chat templates in jinja2's immutable sandbox, set up as in transformers, with limits on work and size.

A template is code from a model's files. The sandbox keeps it away from Python's internals and from changing its inputs.
Every loop, call, filter and operator passes through here, so that `meter.py` can limit time and memory.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache, wraps
from math import prod
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from weft.errors import FormatError, InputError
from weft.text.meter import bound, bound_elements, counted, kept, size_of, spend, weigh

SOURCE_LIMIT = 256 << 10
WORD_LIMIT = 20_000  # of a template's source; the longest templates in use have some 3,000
PARTS_LIMIT = 10_000
MACRO_LIMIT = 500
LOOP_DEPTH = 16  # Python stops at 20
INTEGER_BITS = 256

# Functions whose result can be longer than all their arguments together: as methods of strings, and as filters.
_MULTIPLYING = frozenset(
    ("batch", "center", "expandtabs", "format", "indent", "join", "ljust", "replace", "rjust", "slice", "zfill")
)
# Filters that read at most one element of their argument.
_CONSTANT_TIME = frozenset(("count", "d", "default", "first", "last", "length"))
# Filters that iterate over the characters of a text, and filters that are slow on long texts.
_BY_CHARACTER = frozenset(
    ("batch", "dictsort", "groupby", "items", "join", "list", "map", "max", "min", "random", "reject", "rejectattr",
     "select", "selectattr", "slice", "sort", "sum", "unique")
)  # fmt: skip
_SLOW = frozenset(("pprint", "striptags", "title", "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr"))
_SLOW_LIMIT = 1 << 16  # characters
# Filters that write their argument as text.
_WRITING = frozenset(("center", "e", "escape", "forceescape", "format", "join", "pprint", "replace", "string"))
# Methods that can make results of any length, or import a codec by name.
_REFUSED = frozenset(("decode", "encode", "to_bytes", "translate"))
_CUTTING = frozenset(("rsplit", "split", "splitlines"))
# A field width of five digits or a computed one, with which a format string can make any length.
_WIDE_FORMAT = re.compile(r"\d{5}|%[^a-zA-Z%]*\*|\{[^{}]*\{")


def _growth(name: str, values: tuple[Any, ...]) -> int:
    """An upper bound on the length that a multiplying function adds to its positional arguments `values`."""
    match values:
        case [str(text), str(old), str(new), *_] if name == "replace":
            return (len(text) // max(1, len(old)) + 1) * len(new)
        case [str(text), int(width), *_] if name == "indent":
            return (text.count("\n") + 1) * abs(width)
        case _:
            return prod(max(1, size_of(value)) for value in values)


def _check_call(name: str, values: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Refuse a call whose result could be far larger than its arguments."""
    if name in _REFUSED:
        raise SecurityError(f"the method {name}")
    if name in _CUTTING and values and isinstance(values[0], str):
        bound_elements(_cuts(values[0], *(value for value in (*values[1:], *named.values()) if isinstance(value, str))))
    if name not in _MULTIPLYING:
        return
    bound(_growth("" if named else name, (*values, *named.values())))
    if name == "format" and isinstance(values[0], str):
        _check_format(values[0])


def _cuts(text: str, *separators: str) -> int:
    """An upper bound on the number of pieces that `split` makes of a text."""
    if separators:
        return text.count(separators[0]) + 1 if separators[0] else 1
    return sum(map(text.count, " \t\n\r\v\f\x1c\x1d\x1e\x1f\x85\xa0\u2028\u2029\u3000")) + 1


def _check_format(form: str) -> None:
    if _WIDE_FORMAT.search(form):
        raise SecurityError("a format string with a field width of five digits or a computed one")


class _Metered(NodeTransformer):
    """Inserts the meters into a template: loops count their elements and check the time, `~` becomes `joined`.

    Operands of comparisons are weighed, because a comparison walks through all that two values hold.
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

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _method("cut", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _method("joined", *node.nodes)


def _method(name: str, *arguments: Any) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(arguments), [], None, None)


def _loop_depth(node: nodes.Node) -> int:
    inner = max((_loop_depth(child) for child in node.iter_child_nodes()), default=0)
    return inner + isinstance(node, nodes.For)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of every chat template."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        if sum(1 for _ in template.find_all(nodes.Node)) > PARTS_LIMIT:
            raise TemplateError(f"it has more than {PARTS_LIMIT} parts")
        if sum(1 for _ in template.find_all((nodes.Macro, nodes.CallBlock, nodes.Block))) > MACRO_LIMIT:
            raise TemplateError(f"it has more than {MACRO_LIMIT} macros and blocks")
        if _loop_depth(template) > LOOP_DEPTH:
            raise TemplateError(f"loops are nested more than {LOOP_DEPTH} deep")
        return _Metered().visit(template)

    def metered(self, values: Any) -> Any:
        """The values of a loop, after counting a step for each."""
        if not hasattr(values, "__len__"):
            values = kept(list(counted(iter(values))))
        spend(len(values))
        return values

    def weighed(self, value: Any) -> Any:
        """One operand of a comparison, after checking its size."""
        weigh(value)
        return counted(value)

    def clocked(self) -> None:
        """Check the time at the start of each iteration of a loop."""
        spend(0)

    def joined(self, *values: Any) -> str:
        """The `~` operator."""
        weigh(*values, written=True)
        return self.concat(str(value) for value in values)

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """The output of a block, a macro or a `~` as one text."""
        texts = [str(piece) for piece in pieces]
        bound(sum(map(len, texts)))
        return kept("".join(texts))

    def cut(self, value: Any) -> Any:
        """A slice, counted as a new value."""
        spend()
        return kept(value)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # a template may pass `self=`
        spend()
        if getattr(__obj, "__self__", None) is not __self:  # else one of the meters
            owner = getattr(__obj, "__self__", None)
            weigh(owner, *args, *kwargs.values())
            args = tuple(map(counted, args))
            _check_call(getattr(__obj, "__name__", ""), (owner, *args), kwargs)
        return kept(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        spend()
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > INTEGER_BITS:
                raise InputError("chat template", f"an integer is too large: over {INTEGER_BITS} bits")
        elif operator == "*":
            _check_length(size_of(left) * size_of(right), left, right)
        elif operator == "+" and not isinstance(left, int) and not isinstance(right, int):
            _check_length(size_of(left) + size_of(right), left, right)
        elif operator == "%" and isinstance(left, str):
            weigh(right, written=True)
            _check_format(left)
        return kept(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__)
        return wrapped


# Two characters to write around what {% generation %} holds; None writes nothing.
answer_marks: ContextVar[tuple[str, str] | None] = ContextVar("answer_marks", default=None)


class _Generation(Extension):
    """{% generation %} marks the assistant's text, for training: it renders its body, between `answer_marks` if set."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """The tokens of a template, up to the limit; checked here because parsing very many takes long."""
        for number, word in enumerate(stream):
            if number > WORD_LIMIT:
                raise TemplateSyntaxError(f"more than {WORD_LIMIT} words", word.lineno)
            yield word

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        before, after = answer_marks.get() or ("", "")
        return before + caller() + after


class _Dict:
    """`dict(…)` in a template, without access to the class."""

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
        _Namespace._check(name)  # through the class: an attribute of `self` is a value that the template stored
        Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace cannot hold {name!r}")


def _check_length(length: int, *parts: Any) -> None:
    """Raise InputError if a text or list of `length`, made of `parts`, is too long."""
    bound(length)
    if any(isinstance(part, list | tuple) for part in parts):
        bound_elements(length)


@pass_context  # a filter of constants is not evaluated when the template is compiled
def _finalised(context: Any, value: Any) -> Any:
    """The value of an expression that is written, after checking its size."""
    weigh(value, written=True)
    return value


def _metered_test(function: Any) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any) -> Any:
        weigh(*args)
        return function(*map(counted, args))

    return call


def _metered_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)  # jinja2 reads the attributes that say what a filter wants as its first argument
    def call(*args: Any, **kwargs: Any) -> Any:
        first = 1 if hasattr(function, "jinja_pass_arg") else 0
        values = args[first:]
        spend(1 if isinstance(values[0], str | int) else 1 + size_of(values[0]))
        _check_filter(name, values, kwargs)
        return kept(function(*args[:first], *map(counted, values), **kwargs))

    return call


def _check_filter(name: str, values: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    weight = 0
    if name not in _CONSTANT_TIME:
        weight = weigh(*values, *named.values(), written=name in _WRITING)
    if isinstance(values[0], str):
        weight = max(weight, len(values[0]))
        if name in _BY_CHARACTER:
            bound_elements(len(values[0]))
    if name == "sum" and not isinstance(named.get("start", values[2] if len(values) > 2 else 0), int | float):
        raise InputError("chat template", "the filter sum takes only numbers")
    if name in _SLOW and weight > _SLOW_LIMIT:
        what = f"a value is too long for the filter {name}: over {_SLOW_LIMIT} characters"
        raise InputError("chat template", what)
    _check_call(name, values, named)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if size_of(indent) > 16:
        raise InputError("chat template", f"tojson has an indent of {size_of(indent)}", advice="the limit is 16")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _reject(message: str) -> None:
    raise InputError("chat template", f"the template rejects these messages: {message}")


def _time_now(form: str) -> str:
    if len(form) > 1_000 or re.search(r"%[^a-zA-Z%]*\d", form):
        raise InputError("chat template", "strftime_now takes neither a long format nor field widths")
    return datetime.now().strftime(form)


@lru_cache(maxsize=1)
def _environment() -> Sandbox:
    extensions = [loopcontrols, _Generation]
    sandbox = Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=extensions,
        autoescape=False,
        optimized=False,
        finalize=_finalised,
    )
    sandbox.filters["tojson"] = _to_json
    sandbox.filters = {name: _metered_filter(name, function) for name, function in sandbox.filters.items()}
    for name in ("eq", "==", "equalto", "ne", "!=", "in", "lt", "<", "lessthan", "le", "<=", "gt", ">", "ge", ">="):
        sandbox.tests[name] = _metered_test(sandbox.tests[name])
    sandbox.globals.update(raise_exception=_reject, strftime_now=_time_now, dict=_Dict(), namespace=_Namespace)
    del sandbox.globals["lipsum"]
    return sandbox


@lru_cache(maxsize=32)
def compiled(source: str) -> Any:
    """The compiled template of `source`; its `generate` yields the output in pieces."""
    if len(source.encode("utf-8", "surrogatepass")) > SOURCE_LIMIT:
        raise FormatError("chat template", f"the source is too long: over {SOURCE_LIMIT} bytes")
    try:
        return _environment().from_string(source)
    except (TemplateError, RecursionError, SyntaxError, ValueError) as error:
        raise FormatError("chat template", f"malformed: {error}") from error
