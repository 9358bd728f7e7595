"""A body with settings of other servers, translated to weft's fields as `client_settings.py` says."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from weft.serve.fields.client_settings import UNSET, ClientSetting, settings_for
from weft.serve.http.faults import invalid

HEADER = b"x-weft-ignored"

_rows = cache(settings_for)


class Translation:
    """The translation of one body. After `apply`, `ignored` has the settings without effect, and `names` the client's
    names of the fields that were renamed."""

    def __init__(self, path: str, *, strict: bool = False) -> None:
        self._path = path
        self._strict = strict
        self.ignored: list[str] = []
        self.names: dict[str, str] = {}

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """The header that names what was ignored."""
        return ((HEADER, ", ".join(self.ignored).encode()),) if self.ignored else ()

    def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body with the table's settings renamed or removed; a fault for those that are refused."""
        rows = _rows(self._path)
        made = self._translated(body, body, rows, "")
        inner = made.get("options")
        if isinstance(inner, dict) and any(name.startswith("options.") for name in rows):
            made["options"] = self._translated(inner, body, rows, "options.")
        return made

    def _translated(
        self, part: Mapping[str, Any], body: Mapping[str, Any], rows: Mapping[str, ClientSetting], before: str
    ) -> dict[str, Any]:
        made = {name: value for name, value in part.items() if before + name not in rows}
        for name, value in part.items():
            row = rows.get(before + name)
            if row is None or value is None:  # null: not set
                continue
            if not row.field:
                self._ignore(row, value, body)
            elif (read := row.read(value)) is not UNSET:
                if made.get(row.field) is not None:
                    raise invalid(f"and {before}{row.field} are the same setting; send one of them", row.name)
                made[row.field] = read
                self.names[before + row.field] = row.name
        return made

    def _ignore(self, row: ClientSetting, value: Any, body: Mapping[str, Any]) -> None:
        if row.harmless is not None and not row.harmless(value, body):
            raise invalid(f"is not supported: {row.note}", row.name, code="unsupported_parameter")
        if self._strict:
            raise invalid(f"has no effect on this server, which is strict: {row.note}", row.name, code="no_effect")
        self.ignored.append(row.name)
