"""String formats: those that llguidance enforces, and patterns for the others."""

NATIVE = frozenset(("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"))

# Formats that only say how a value is used or displayed; they do not restrict it.
NOTES = frozenset(("double", "float", "password"))

INTEGERS = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**53) + 1, 2**53 - 1),  # the integers that every JSON parser reads exactly
    "uint32": (0, 2**32 - 1),
}

_UNRESERVED = r"A-Za-z0-9._~\-"
_WIDE = r"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef"  # RFC 3987, the basic plane
_ESCAPED = "%[0-9A-Fa-f]{2}"
_OTHER = r"!$&'()*+,;="
_LITERAL = r"(?:[!#$&(-;=?-\[\]_a-z~]|%[0-9A-Fa-f]{2})"
_VARIABLE = r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})(?:\.?(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*(?::[1-9][0-9]{0,3}|\*)?"


def _absolute(letters: str) -> str:
    """A URI of RFC 3986; an authority is a name, not an address in brackets."""
    return (
        rf"[A-Za-z][A-Za-z0-9+.\-]*:(?:{_authority(letters)}|(?:/?{_character(letters)}+(?:/{_character(letters)}*)*)?)"
    )


def _relative(letters: str) -> str:
    """A reference without a scheme."""
    character, first = _character(letters), f"(?:[{letters}{_OTHER}@]|{_ESCAPED})"
    path = f"(?:/(?:{character}+(?:/{character}*)*)?|{first}+(?:/{character}*)*)?"
    return f"(?:{_authority(letters)}|{path})"


def _character(letters: str) -> str:
    return f"(?:[{letters}{_OTHER}:@]|{_ESCAPED})"


def _authority(letters: str) -> str:
    return f"//(?:[{letters}{_OTHER}]|{_ESCAPED})*(?::[0-9]*)?(?:/{_character(letters)}*)*"


def _end(letters: str) -> str:
    """A query and a fragment."""
    return rf"(?:\?(?:{_character(letters)}|[/?])*)?(?:#(?:{_character(letters)}|[/?])*)?"


def _reference(letters: str) -> str:
    return f"^(?:{_absolute(letters)}|{_relative(letters)}){_end(letters)}$"


_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9\-]{0,61}[A-Za-z0-9])?"

PATTERNS = {
    "json-pointer": r"^(?:/(?:[^~/]|~[01])*)*$",
    "relative-json-pointer": r"^(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^~/]|~[01])*)*)$",
    "iri": f"^{_absolute(_UNRESERVED + _WIDE)}{_end(_UNRESERVED + _WIDE)}$",
    "uri-reference": _reference(_UNRESERVED),
    "iri-reference": _reference(_UNRESERVED + _WIDE),
    "uri-template": rf"^(?:{_LITERAL}|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*$",
    "idn-email": rf"^[A-Za-z0-9_+\-{_WIDE}]+(?:\.[A-Za-z0-9_+\-{_WIDE}]+)*@{_LABEL}(?:\.{_LABEL})*$",
    "idn-hostname": rf"^{_LABEL}(?:\.{_LABEL})*$",
}
