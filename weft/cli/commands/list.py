"""weft list: the models on this machine, those in the catalogue, and the model types weft runs."""

from typing import Any

import click

from weft.cli import screen


@click.command()
@click.option("--catalog", is_flag=True, help="List all models of the catalogue.")
@click.option("--models", is_flag=True, help="List the model types weft runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(catalog: bool, models: bool, as_json: bool) -> None:
    """List the models on this machine.

    \b
    Examples:
      weft list
      weft list --catalog
      weft list --models
    """
    if catalog and models:
        raise click.UsageError("--catalog and --models cannot be combined; give one")
    rows = _catalogue() if catalog else _model_types() if models else _local()
    if as_json:
        screen.print_json(rows)
    elif rows:
        shown = [{**row, "size": _size(row["size"])} if "size" in row else row for row in rows]
        screen.table(list(shown[0]), [tuple(row.values()) for row in shown], right=("size",))
    else:
        screen.note("no models yet; `weft list --catalog` lists models that `weft pull NAME` downloads")


def _size(count: int | None) -> str:
    return screen.size(count) if count else "unknown"


def _local() -> list[dict[str, Any]]:
    from weft.weights.sources import list_local

    return [
        {"name": m.name, "format": m.format, "size": m.bytes, "from": m.source, "path": str(m.path)}
        for m in list_local()
    ]


def _catalogue() -> list[dict[str, Any]]:
    from weft.weights.sources.catalog import HubSource, PackageSource, entries

    def place(source: HubSource | PackageSource, gated: bool) -> str:
        return "package index" if isinstance(source, PackageSource) else "hub, licence to accept" if gated else "hub"

    return [
        {
            "name": e.name,
            "kind": e.kind,
            "size": e.bytes or None,
            "licence": e.licence,
            "here": "yes" if _is_here(e.name) else "no",
            "origin": e.origin,
            "from": ", ".join(place(source, e.gated) for source in e.sources),
            "note": e.note,
        }
        for e in entries()
    ]


def _is_here(name: str) -> bool:
    from weft.errors import OfflineError
    from weft.weights.sources import locate

    try:
        locate(name, offline=True)
    except OfflineError:
        return False
    return True


def _model_types() -> list[dict[str, Any]]:
    from weft.models import model_module, model_types

    found = {name: model_module(name) for name in model_types()}
    return [
        {"model type": name, "kind": module.KIND, "what": (module.__doc__ or "").partition("\n")[0]}
        for name, module in found.items()
    ]
