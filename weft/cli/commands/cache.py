"""weft cache: show and prune the embedding cache on disk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft.cli import options, screen

if TYPE_CHECKING:
    from weft.embed.cache.disk import DiskCache, ModelStats

PERIODS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def _seconds(_: click.Context, __: click.Parameter, given: str | None) -> float | None:
    if given is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", given.strip().lower())
    if not found:
        raise click.BadParameter(f"{given!r} is not a time; give 90m, 12h, 30d or 8w")
    return float(found[1]) * PERIODS[found[2]]


@click.command()
@click.option(
    "--file", "path", type=click.Path(dir_okay=False, path_type=Path), help="The cache file (default: weft's own)."
)
@click.option(
    "--max-size",
    callback=options.byte_count,
    metavar="SIZE",
    help="Delete the least recently used vectors until the cache has this size: 500MB.",
)
@click.option(
    "--older-than", callback=_seconds, metavar="TIME", help="Delete vectors that were not used for this long: 30d."
)
@click.option(
    "--fingerprint", metavar="TEXT", help="Delete the vectors of the model whose fingerprint begins with TEXT."
)
@click.option("--clear", is_flag=True, help="Delete all vectors.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    path: Path | None,
    max_size: int | None,
    older_than: float | None,
    fingerprint: str | None,
    clear: bool,
    as_json: bool,
) -> None:
    """Show or prune the cache of vectors.

    `weft embed --cache disk` and `Embedder(cache="disk")` fill it; the vectors of each model are kept under its
    fingerprint. Options that delete vectors are applied before the cache is shown.

    \b
    Examples:
      weft cache
      weft cache --max-size 500MB
      weft cache --older-than 30d
      weft cache --clear
    """
    from weft.embed.cache.disk import DiskCache, default_path

    place = default_path() if path is None else path
    if not place.is_file():
        if as_json:
            screen.print_json({"path": str(place), "vectors": 0, "bytes": 0, "file_bytes": 0, "models": []})
        screen.note(f"there is no cache at {place}; `weft embed --cache disk` creates one")
        return
    pruned = (max_size, older_than, fingerprint) != (None, None, None)
    if clear and pruned:
        raise click.UsageError("--clear deletes all vectors; it cannot be combined with other options that delete")
    cache = DiskCache(place)
    gone = cache.clear() if clear else 0
    if pruned:
        whole = None if fingerprint is None else _whole(cache, fingerprint)
        gone += cache.prune(max_bytes=max_size, older_than_s=older_than, fingerprint=whole)
    if clear or pruned:
        screen.note(f"{screen.many(gone, 'vector')} deleted")
    _show(cache, as_json)


def _whole(cache: DiskCache, beginning: str) -> str:
    if not beginning:
        raise click.UsageError(
            "--fingerprint is empty; `weft cache` lists fingerprints, and --clear deletes all vectors"
        )
    found = [model.fingerprint for model in cache.models() if model.fingerprint.startswith(beginning)]
    if len(found) != 1:
        count = len(found) or "no"
        raise click.UsageError(f"{count} fingerprints begin with {beginning!r}; `weft cache` lists them")
    return found[0]


def _show(cache: DiskCache, as_json: bool) -> None:
    from weft.embed.fingerprint import brief

    models, size, on_disk = cache.models(), cache.size_bytes, cache.file_bytes
    if as_json:
        total = {"path": str(cache.path), "vectors": len(cache), "bytes": size, "file_bytes": on_disk}
        screen.print_json({**total, "models": [_as_json(model) for model in models]})
        return
    facts = [("vectors", f"{len(cache):,}"), ("size", screen.size(size)), ("on disk", screen.size(on_disk))]
    screen.facts(facts, title=str(cache.path))
    if models:
        rows = [
            (
                m.name,
                m.dimension,
                brief(m.fingerprint),
                f"{m.vectors:,}",
                screen.size(m.size_bytes),
                screen.moment(m.used),
            )
            for m in models
        ]
        columns = ("model", "dimensions", "fingerprint", "vectors", "size", "last used")
        screen.table(columns, rows, right=("dimensions", "vectors", "size"))


def _as_json(model: ModelStats) -> dict[str, str | int]:
    return {
        "model": model.name,
        "dimension": model.dimension,
        "fingerprint": model.fingerprint,
        "vectors": model.vectors,
        "bytes": model.size_bytes,
        "used": model.used,
    }
