"""What is wrong with a body that does not fit its schema, in plain words: the field, what is expected, what was given.

msgspec's errors have no attributes, so the body is compared with the schema once more. Values of strings are not
repeated in messages, except where a field has a few known values: a prompt may be private.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from msgspec import inspect

from weft.frozen import frozen
from weft.serve.http.faults import Fault, invalid

REFUSAL = "refusal"  # key of a field's `Meta(extra=...)`: the message for values that break its limits

_LONGEST_PLACE = 200
_SHOWN = 60  # characters of a value in a message


@frozen
class Misfit:
    """The field `where`, and the end of the sentence that begins with its name."""

    where: str
    what: str
    code: str = "invalid_value"
    colon: bool = False  # the message is a sentence of its own

    def fault(self, names: Mapping[str, str]) -> Fault:
        """The 400 of it; `names` are fields that the client calls otherwise."""
        first = self.where.partition(".")[0].partition("[")[0]
        where = names[first] + self.where[len(first) :] if first in names else self.where
        where = where[:_LONGEST_PLACE]
        if self.colon:
            return Fault(400, f"{where}: {self.what}", param=where, code=self.code)
        return invalid(self.what if where else f"the body {self.what}", where or None, code=self.code)


def misfit(value: Any, schema: type[Any]) -> Misfit | None:
    """The first thing in a decoded body that does not fit; None if everything does."""
    return _check(value, inspect.type_info(schema), "")


def _check(value: Any, kind: Any, where: str) -> Misfit | None:
    if isinstance(kind, inspect.Metadata):
        found = _check(value, kind.type, where)
        text = (kind.extra or {}).get(REFUSAL)
        return Misfit(where, text, colon=True) if found is not None and found.where == where and text else found
    if isinstance(kind, inspect.UnionType):
        return _check_union(value, list(kind.types), where)
    if not _same_type(value, kind):
        if isinstance(kind, inspect.NoneType):
            return Misfit(where, "is not supported by this server", "unsupported_parameter")
        return Misfit(where, f"must be {_wanted([kind])}, not {_given(value)}")
    if isinstance(kind, inspect.StructType):
        return _check_struct(value, kind, where)
    if isinstance(kind, inspect.ListType):
        found = _check_length(len(value), kind, where, "entry", "entries")
        entries = (_check(item, kind.item_type, f"{where}[{number}]") for number, item in enumerate(value))
        return found or _first(entries)
    if isinstance(kind, inspect.DictType):
        found = _check_length(len(value), kind, where, "key", "keys")
        return found or _first(_check(item, kind.value_type, f"{where}.{key}") for key, item in value.items())
    if isinstance(kind, inspect.LiteralType):
        if value in kind.values:
            return None
        known = ", ".join(map(repr, kind.values))
        return Misfit(where, f"is {str(value)[:_SHOWN]!r}, which is not possible; one of {known}")
    if isinstance(kind, inspect.StrType):
        return _check_length(len(value), kind, where, "character", "characters")
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        return _check_range(value, kind, where)
    return None


def _check_union(value: Any, kinds: list[Any], where: str) -> Misfit | None:
    """A value fits a union if it fits one of its types; else the error is that of the type it comes closest to."""
    close = [kind for kind in kinds if _same_type(value, kind)]
    if not close:
        some = [kind for kind in kinds if not isinstance(_bare(kind), inspect.NoneType)]
        refusal = next((kind for kind in some if isinstance(kind, inspect.Metadata)), None)
        if refusal is not None and (text := (refusal.extra or {}).get(REFUSAL)):
            return Misfit(where, text, colon=True)
        return Misfit(where, f"must be {_wanted(some)}, not {_given(value)}")
    found = [_check(value, kind, where) for kind in close]
    return None if None in found else found[0]


def _check_struct(value: dict[str, Any], kind: Any, where: str) -> Misfit | None:
    fields = {field.encode_name: field for field in kind.fields}
    begin = f"{where}." if where else ""
    for name, item in value.items():
        if name not in fields and kind.cls.__struct_config__.forbid_unknown_fields:
            near = get_close_matches(name, fields, 1, 0.8)
            hint = f"; did you mean {near[0]}?" if near else ""
            return Misfit(f"{begin}{name}", f"is not a field of this request{hint}", "unknown_parameter")
        if name in fields and (found := _check(item, fields[name].type, f"{begin}{name}")) is not None:
            return found
    missing = next((name for name, field in fields.items() if field.required and name not in value), None)
    return Misfit(f"{begin}{missing}", "is missing", "missing_parameter") if missing is not None else None


def _check_length(count: int, kind: Any, where: str, one: str, several: str) -> Misfit | None:
    least, most = kind.min_length or 0, kind.max_length
    if count < least:
        return Misfit(where, "must not be empty" if least == 1 else f"must have at least {least} {several}")
    if most is not None and count > most:
        return Misfit(where, f"has {count} {several if count != 1 else one}; at most {most} are allowed")
    return None


def _check_range(value: float, kind: Any, where: str) -> Misfit | None:
    above, least, most = kind.gt, kind.ge, kind.le
    if (
        (above is None or value > above)
        and (least is None or value >= least)
        and (most is None or value <= most)
        and (kind.lt is None or value < kind.lt)
    ):
        return None
    if least is not None and most is not None:
        wanted = f"from {least:g} to {most:g}" if isinstance(kind, inspect.FloatType) else f"from {least} to {most}"
    else:
        limits = (("above", above), ("at least", least), ("at most", most), ("below", kind.lt))
        wanted = " and ".join(f"{word} {limit:g}" for word, limit in limits if limit is not None)
    return Misfit(where, f"must be {_wanted([kind])} {wanted}; it is {str(value)[:_SHOWN]}")


def _bare(kind: Any) -> Any:
    return _bare(kind.type) if isinstance(kind, inspect.Metadata) else kind


def _same_type(value: Any, kind: Any) -> bool:
    """Whether a JSON value has the JSON type of `kind`, whatever its limits."""
    kind = _bare(kind)
    if isinstance(kind, inspect.UnionType):
        return any(_same_type(value, one) for one in kind.types)
    if isinstance(kind, inspect.AnyType):
        return True
    if isinstance(kind, inspect.LiteralType):
        return type(value) in {type(known) for known in kind.values}
    if isinstance(kind, inspect.IntType):
        return type(value) is int
    if isinstance(kind, inspect.FloatType):
        return type(value) in (int, float)
    known: dict[type[Any], type[Any]] = {
        inspect.StructType: dict,
        inspect.DictType: dict,
        inspect.ListType: list,
        inspect.StrType: str,
        inspect.BoolType: bool,
        inspect.NoneType: type(None),
    }
    return type(value) is known.get(type(kind))


_NAMES: dict[Any, str] = {
    inspect.StructType: "an object",
    inspect.DictType: "an object",
    inspect.ListType: "a list",
    inspect.StrType: "a string",
    inspect.BoolType: "true or false",
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.NoneType: "null",
}


def _wanted(kinds: Iterable[Any]) -> str:
    """a string or a list"""
    return " or ".join(dict.fromkeys(name for kind in kinds for name in _names_of(_bare(kind))))


def _names_of(kind: Any) -> Iterator[str]:
    if isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _names_of(_bare(one))
    elif isinstance(kind, inspect.LiteralType):
        yield f"one of {', '.join(map(repr, kind.values))}"
    else:
        yield _NAMES.get(type(kind), "another value")


def _given(value: Any) -> str:
    """How a message shows a value of the wrong type: numbers as they are, anything else by its type."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int | float):
        return str(value)[:_SHOWN]
    names: dict[Any, str] = {str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "another value")


def _first(found: Iterable[Misfit | None]) -> Misfit | None:
    return next((one for one in found if one is not None), None)
