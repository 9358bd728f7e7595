"""weft registry: versions of models, adapters, classifiers and indexes: add, promote, watch in shadow, roll back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options, screen

if TYPE_CHECKING:
    from weft.registry import Registry, Version

SHOWN_EVENTS = 12


def registry_option() -> Callable[[options.F], options.F]:
    return click.option(
        "--registry",
        "folder",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="FOLDER",
        help="The registry's folder (default: WEFT_REGISTRY, else ~/.local/share/weft/registry).",
    )


def json_option() -> Callable[[options.F], options.F]:
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@contextmanager
def opened(folder: Path | None, *, create: bool = False) -> Iterator[Registry]:
    from weft.registry import Registry

    with Registry(folder, create=create) as found:
        yield found


@click.group()
def command() -> None:
    """Keep versions of models, and roll back.

    A version is a copy of a model's files under a name and a semantic version, with where it came from and how it
    measured. An alias such as `production` says which version is meant; `registry:NAME@production` works wherever a
    MODEL is asked for, and `weft serve --registry` follows it without a restart.

    \b
    Examples:
      weft registry add support ./my-lora 1.0.0 --base smollm2-135m-instruct --metric loss=1.2
      weft registry promote support@1.0.0
      weft generate -m registry:support@production "Hello"
      weft registry rollback support
    """


@command.command()
@click.argument("name")
@click.argument("source", metavar="MODEL|FOLDER|FILE")
@click.argument("version")
@click.option(
    "--kind",
    type=click.Choice(["model", "adapter", "classifier", "index"]),
    help="What it is (default: adapter for a folder with adapter_config.json, else model).",
)
@click.option("--base", metavar="MODEL", help="The model that an adapter is loaded with; registry:NAME@… is pinned.")
@click.option("--parent", "parents", multiple=True, metavar="NAME@…", help="A version that this one was made from.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="What it was trained on: a manifest (a .json file), or the data itself, whose digest is recorded.",
)
@click.option("--metric", "metrics", multiple=True, metavar="NAME=NUMBER", help="A measure of this version.")
@click.option("--description", default="", help="A sentence about this version.")
@click.option("--link", is_flag=True, help="Make hard links where possible; then never change the original files.")
@registry_option()
@json_option()
def add(name: str, source: str, version: str, as_json: bool, folder: Path | None, **given: Any) -> None:
    """Copy a model's files into the registry as VERSION of NAME.

    VERSION is a semantic version: 1.2.0, or 1.2.0-rc.1. The files never change afterwards, and are compared with their
    digests whenever they are loaded. The same files can be added again as the same version; other files cannot.

    \b
    Examples:
      weft registry add search all-MiniLM-L6-v2 1.0.0 --metric spearman=0.8203
      weft registry add search ./tuned 1.1.0 --parent search@1.0.0 --data pairs.jsonl
      weft registry add support ./my-lora 1.0.0 --base smollm2-135m-instruct
    """
    from weft.cli.counting import reported

    path = _located(source)
    kind = given["kind"] or _kind(path)
    done = 0
    with opened(folder, create=True) as registry, reported("bytes copied") as report:

        def tell(count: int) -> None:
            nonlocal done
            done += count
            report(done)

        made = registry.add(
            name,
            path,
            version,
            kind=kind,
            base=given["base"],
            parents=given["parents"],
            data=_manifest(given["data"]),
            evaluations=_metrics(given["metrics"]),
            description=given["description"],
            link=given["link"],
            tell=tell,
        )
    if as_json:
        screen.print_json(made.as_dict())
    else:
        screen.note(f"{made.reference} added: {made.state}, {screen.size(made.size_bytes)}, {made.digest[:12]}")


def _located(source: str) -> Path:
    """The folder or file that a user named: a path, or any model name."""
    from weft.weights.sources import locate

    path = Path(source).expanduser()
    return path if path.exists() else locate(source).path


def _manifest(path: Path | None) -> dict[str, Any] | None:
    import json

    from weft import digest
    from weft.errors import FormatError

    if path is None:
        return None
    if path.suffix == ".json":
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise FormatError(path.name, f"is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise FormatError(path.name, "must be an object", given=found)
        return found
    with path.open("rb") as opened_file:
        return {"file": path.name, "size_bytes": path.stat().st_size, "sha256": digest.of_file(opened_file)}


def _metrics(given: tuple[str, ...]) -> dict[str, float]:
    found = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise click.UsageError(f"{text!r} is not a measure; write NAME=NUMBER") from None
    return found


@command.command(name="list")
@registry_option()
@json_option()
def list_names(folder: Path | None, as_json: bool) -> None:
    """List names with their aliases and number of versions.

    \b
    Example:
      weft registry list --registry ./registry
    """
    with opened(folder) as registry:
        found = registry.names()
    if as_json:
        screen.print_json([_named(one) for one in found])
        return
    rows = [
        (
            one.name,
            one.kind,
            ", ".join(f"{alias} {version}" for alias, version in one.aliases.items()),
            one.versions[-1].version if one.versions else "",
            len(one.versions),
        )
        for one in found
    ]
    screen.table(("name", "kind", "aliases", "highest", "versions"), rows, right=("versions",))


def _named(one: Any) -> dict[str, Any]:
    versions = [version.as_dict() for version in one.versions]
    return {"name": one.name, "kind": one.kind, "aliases": dict(one.aliases), "versions": versions}


def _kind(path: Path) -> str:
    from weft.classify.classifier import is_classifier

    if (path / "adapter_config.json").is_file():
        return "adapter"
    return "classifier" if is_classifier(path) else "model"


@command.command()
@click.argument("name", metavar="NAME[@…]")
@click.option("--path", "only_path", is_flag=True, help="Print only the folder or file, after comparing its digest.")
@registry_option()
@json_option()
def show(name: str, only_path: bool, folder: Path | None, as_json: bool) -> None:
    """Show a name with all versions, or one version.

    \b
    Examples:
      weft registry show support
      weft registry show support@1.2.0
      weft search "$(weft registry show notes@production --path)" "trains to Berlin"
    """
    with opened(folder) as registry:
        if only_path:
            click.echo(str(registry.path(name)))
        elif "@" in name:
            _show_version(registry.get(name), as_json)
        else:
            _show_name(registry, name, as_json)


def _show_name(registry: Registry, name: str, as_json: bool) -> None:
    found, events = registry.named(name), registry.events(name, limit=SHOWN_EVENTS)
    if as_json:
        screen.print_json({**_named(found), "events": [event.as_dict() for event in events]})
        return
    rows = [
        (
            version.version,
            version.state,
            ", ".join(version.aliases),
            screen.size(version.size_bytes),
            ", ".join(f"{one.metric} {one.value:g}" for one in version.evaluations[-4:]),
            screen.moment(version.created),
        )
        for version in found.versions
    ]
    screen.table(("version", "state", "aliases", "size", "measures", "added"), rows, right=("size",))
    click.echo()
    screen.table(
        ("when", "version", "what", ""),
        [
            (screen.moment(event.at_microseconds / 1e6), event.version, event.action, _details(event.detail))
            for event in events
        ],
    )


def _details(detail: Any) -> str:
    return screen.cut(", ".join(f"{name} {value}" for name, value in detail.items() if value is not None), 80)


def _show_version(version: Version, as_json: bool) -> None:
    if as_json:
        screen.print_json(version.as_dict())
        return
    rows = [
        ("kind", version.kind),
        ("state", version.state),
        ("aliases", ", ".join(version.aliases) or "none"),
        ("digest", version.digest),
        ("size", screen.size(version.size_bytes)),
        ("added", screen.moment(version.created)),
        *([("base", version.base)] if version.base else []),
        *([("parents", ", ".join(version.parents))] if version.parents else []),
        *([("data", version.data)] if version.data else []),
        *([("description", version.description)] if version.description else []),
        *((one.metric, f"{one.value:g}{f' ({one.data})' if one.data else ''}") for one in version.evaluations),
    ]
    screen.facts(rows, title=version.reference)


@command.command()
@click.argument("version", metavar="NAME@…")
@click.argument("metrics", nargs=-1, required=True, metavar="METRIC=NUMBER...")
@click.option("--data", default="", help="What it was measured on.")
@registry_option()
def evaluate(version: str, metrics: tuple[str, ...], data: str, folder: Path | None) -> None:
    """Record measures of a version; a pending version is then validated.

    \b
    Example:
      weft registry evaluate support@1.1.0 accuracy=0.93 --data held-out.jsonl
    """
    with opened(folder) as registry:
        found = registry.evaluate(version, _metrics(metrics), data=data)
    screen.note(f"{found.reference}: {len(found.evaluations)} measures, {found.state}")


@command.command()
@click.argument("version", metavar="NAME[@…]")
@click.option("--to", default="production", show_default=True, metavar="ALIAS", help="The alias to move.")
@click.option("--force", is_flag=True, help="Also a version that failed shadow, or that nothing is known about.")
@registry_option()
@json_option()
def promote(version: str, to: str, force: bool, folder: Path | None, as_json: bool) -> None:
    """Let an alias mean a version, at once for everybody.

    NAME alone means the candidate: what the alias `candidate` names. A version goes into production only if it has a
    measure or passed shadow, and not if it failed shadow; --force overrides both.

    \b
    Examples:
      weft registry promote support@1.1.0 --to candidate
      weft registry promote support
    """
    with opened(folder) as registry:
        move = registry.promote(version, to=to, force=force)
    _print_move(move, as_json)


def _print_move(move: Any, as_json: bool) -> None:
    if as_json:
        screen.print_json(move.as_dict())
        return
    before = "nothing" if move.previous is None else move.previous
    what = f"is {move.version} now; it was {before}" if move.changed else f"is {move.version} already"
    screen.note(f"{move.name}@{move.alias} {what}")


@command.command()
@click.argument("name")
@click.option("--alias", default="production", show_default=True, help="The alias to move back.")
@registry_option()
@json_option()
def rollback(name: str, alias: str, folder: Path | None, as_json: bool) -> None:
    """Let an alias mean what it meant before.

    \b
    Example:
      weft registry rollback support
    """
    with opened(folder) as registry:
        move = registry.rollback(name, alias=alias)
    _print_move(move, as_json)


@command.command()
@click.argument("version", metavar="NAME@…")
@click.argument("state", type=click.Choice(["validated", "staged", "deprecated", "archived"]))
@registry_option()
def mark(version: str, state: str, folder: Path | None) -> None:
    """Change a version's state: deprecated ones load with a warning, archived ones do not load.

    `weft registry gc` removes the files of archived versions.

    \b
    Example:
      weft registry mark support@1.0.0 archived
    """
    with opened(folder) as registry:
        found = registry.mark(version, state)
    screen.note(f"{found.reference} is {found.state}")


@command.command()
@click.argument("version", metavar="NAME[@…]")
@registry_option()
@json_option()
def lineage(version: str, folder: Path | None, as_json: bool) -> None:
    """Show what a version was made from, and what was made from it.

    \b
    Example:
      weft registry lineage support@production
    """
    with opened(folder) as registry:
        found = registry.lineage(version)
    if as_json:
        parts = {"ancestors": found.ancestors, "descendants": found.descendants}
        shown = {
            name: [{"distance": d, "role": role, **one.as_dict()} for d, role, one in several]
            for name, several in parts.items()
        }
        screen.print_json({"version": found.version.as_dict(), **shown})
        return
    for distance, role, one in reversed(found.ancestors):
        click.echo(f"{'  ' * (len(found.ancestors) - distance)}{one.reference}  {role}, {one.state}")
    own = found.version
    click.echo(f"{own.reference}  {own.kind}, {own.state}, {own.digest[:12]}")
    if own.base and not own.base.startswith("registry:"):
        click.echo(f"  base: {own.base}")
    if own.data:
        click.echo(f"  data: {screen.cut(str(dict(own.data)), 200)}")
    for distance, role, one in found.descendants:
        what = "adapter of it" if role == "base" else "made from it"
        click.echo(f"{'  ' * distance}{one.reference}  {what}, {one.state}")


@command.command()
@click.argument("name", metavar="NAME")
@click.option("--start", metavar="VERSION", help="Begin a run of this version, or of an alias such as candidate.")
@click.option("--stop", is_flag=True, help="End the run; its candidate has not passed.")
@click.option("--share", type=float, help="Share of requests to compare (default: 0.1).")
@click.option("--samples", type=int, help="Requests after which the candidate is judged (default: 1000).")
@click.option("--min-agreement", type=float, help="Least mean agreement of answers (default: 0.95).")
@click.option("--max-difference", type=float, help="Largest mean difference of answers (default: 0.1).")
@click.option("--max-slower-ms", type=float, help="Most milliseconds that the candidate may take more (default: 50).")
@click.option("--max-errors", type=int, help="Most samples that may fail (default: 0).")
@click.option("--timeout-s", type=float, help="Seconds after which a sample has failed (default: 30).")
@registry_option()
@json_option()
def shadow(name: str, start: str | None, stop: bool, folder: Path | None, as_json: bool, **limits: Any) -> None:
    """Show, begin or end a shadow run of a candidate.

    Servers that follow NAME's production version (`weft serve --registry`) let the candidate answer a share of their
    requests, too, after the reply has gone, and compare: tokens and their log-probabilities, vectors, labels or scores,
    and times. A candidate that fails, computes NaN, is too slow or too different does not pass, and a failed one is
    not promoted without --force.

    \b
    Examples:
      weft registry shadow support --start 1.1.0 --share 0.2 --samples 200
      weft registry shadow support
    """
    given = {limit: value for limit, value in limits.items() if value is not None}
    if stop and (start or given):
        raise click.UsageError("--stop is given alone")
    if given and not start:
        raise click.UsageError("limits are given with --start VERSION")
    with opened(folder) as registry:
        if start:
            found = registry.start_shadow(f"{name}@{start}", **given)
        else:
            found = registry.stop_shadow(name) if stop else registry.shadow(name)  # type: ignore[assignment]
    if as_json:
        screen.print_json(None if found is None else found.as_dict())
    elif found is None:
        screen.note(f"{name} has had no shadow run; begin one with --start VERSION")
    else:
        _show_shadow(found.as_dict())


def _show_shadow(run: dict[str, Any]) -> None:
    counts, measures, limits = run["counts"], run["measures"], run["limits"]
    rows = [
        ("candidate", f"{run['candidate']}, beside {run['baseline']}"),
        ("verdict", f"{run['verdict']}: {run['reason']}" if run["reason"] else run["verdict"]),
        ("samples", f"{counts['samples']} of {limits['samples']}, {counts['skipped']} skipped"),
        ("errors", f"{counts['errors']}, of which {counts['not_finite']} not finite (at most {limits['max_errors']})"),
        ("agreement", f"{measures['agreement']:.4f} (at least {limits['min_agreement']:g})"),
        (
            "difference",
            f"{measures['mean_difference']:.4g} mean, {measures['largest_difference']:.4g} largest (mean at most "
            f"{limits['max_difference']:g})",
        ),
        (
            "time",
            f"{measures['candidate_ms']:.1f} ms, baseline {measures['baseline_ms']:.1f} ms (at most "
            f"{limits['max_slower_ms']:g} ms more)",
        ),
    ]
    screen.facts(rows, title=f"{run['name']}: shadow run")


@command.command()
@click.option("--dry-run", is_flag=True, help="Say what would be removed.")
@registry_option()
@json_option()
def gc(dry_run: bool, folder: Path | None, as_json: bool) -> None:
    """Remove files that no version needs: those of archived versions, and what killed processes left.

    \b
    Example:
      weft registry gc --dry-run
    """
    with opened(folder) as registry:
        found = registry.gc(dry_run=dry_run)
    if as_json:
        shown = [path.name for path in found.paths]
        screen.print_json({"removed": found.removed, "size_bytes": found.size_bytes, "folders": shown})
        return
    verb = "removed" if found.removed else "would be removed"
    screen.note(f"{screen.many(len(found.paths), 'folder')}, {screen.size(found.size_bytes)} {verb}")
