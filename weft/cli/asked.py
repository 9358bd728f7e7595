"""Options of the command line as the library takes them: sampling settings, a grammar, adapters, an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options

if TYPE_CHECKING:
    from weft.generate import Grammar, Model
    from weft.runtime import Adapters

FILE_LIMIT = 1 << 20


def sampling(settings: dict[str, Any]) -> dict[str, Any]:
    """`settings` without the options SAMPLING that were not given, and with the keys of --sampling as their own."""
    rare = settings.pop("sampling")
    unset = {name for name in options.SAMPLING if settings.get(name, ()) is None}
    return {**{name: value for name, value in settings.items() if name not in unset}, **rare}


def grammar(settings: dict[str, Any]) -> Grammar | None:
    """Remove the options SHAPES from `settings`; return the grammar they describe."""
    given = {name: settings.pop(name) for name in options.SHAPES}
    named = [name for name, value in given.items() if value]
    if not named:
        return None
    if len(named) > 1:
        raise click.UsageError(f"--{named[0]} and --{named[1]} cannot be combined; give one")
    from weft.generate import Grammar

    (name,), value = named, given[named[0]]
    if name == "schema":
        return Grammar.json_schema(_schema(value))
    if name == "regex":
        return Grammar.regex(value)
    if name == "choice":
        return Grammar.choices(list(value))
    text = _read(value)
    return Grammar.gbnf(text) if value.endswith(".gbnf") else Grammar.lark(text)


def _schema(value: str) -> Any:
    text = value if value.lstrip().startswith(("{", "true", "false")) else _read(value)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--schema is not JSON: {error}") from None


def _read(name: str) -> str:
    path = Path(name)
    try:
        if path.stat().st_size > FILE_LIMIT:
            raise click.UsageError(f"{name} is larger than {FILE_LIMIT >> 20} MiB")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{name} cannot be read: {error}") from None


def prepare(model: Model, settings: dict[str, Any]) -> None:
    """Remove the options ENGINE from `settings` and set up the model with them; `adapter` becomes a request option."""
    adapters, prefix_dir, draft_model = (settings.pop(name) for name in options.ENGINE)
    if prefix_dir is not None or draft_model is not None:
        import weft

        named = draft_model in (None, "mtp", "none")
        draft = draft_model if named else weft.load(draft_model, draft="none")
        model.use_engine(weft.Engine(model, prefix_dir=prefix_dir, draft=draft))
    if adapters:
        settings["adapter"] = load_adapters(model.adapters, adapters)


def load_adapters(adapters: Adapters, given: tuple[str, ...]) -> str:
    """Load each FOLDER[=WEIGHT] of `given` and blend several or weighted ones; returns the adapter's name."""
    weights: dict[str, float] = {}
    for number, entry in enumerate(given):
        folder, equals, weight = entry.rpartition("=")
        if not equals or not _is_number(weight):
            folder, weight = entry, "1"
        name = f"{number}:{Path(folder).name}"
        adapters.load(name, folder)
        weights[name] = float(weight)
    if list(weights.values()) == [1.0]:
        return next(iter(weights))
    adapters.blend("blend", weights)
    return "blend"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
