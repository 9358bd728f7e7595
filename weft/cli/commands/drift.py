"""weft drift: have the vectors moved enough to matter?"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options, screen
from weft.cli.stopping import terminable

if TYPE_CHECKING:
    import numpy as np

    from weft.embed import Embedder

GATE_DRIFT, GATE_ABSENT, GATE_ERROR = 1, 2, 3
MAX_COSINE_DRIFT = 1e-3


class Comparing(click.Group):
    """`weft drift A B` means `weft drift compare A B`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["compare", *args]
        return super().parse_args(ctx, args)


@click.group(cls=Comparing)
def command() -> None:
    """Tell whether vectors have moved enough to matter.

    `weft drift A B` compares two sets: files of vectors (.npy), indexes, stores, or two models over the same --texts.

    \b
    Examples:
      weft drift last-month.npy today.npy
      weft drift notes.index docs.db --json
      weft drift all-MiniLM-L6-v2 ./finetuned --texts questions.txt --page drift.html
      weft drift watch reference.npy today.jsonl --false-alarms 0.01
      weft drift gate all-MiniLM-L6-v2 --baseline baseline.json
      weft drift align old.npy new.npy -o old-to-new.npz
    """


@command.command()
@click.argument("a")
@click.argument("b")
@click.option(
    "--texts", metavar="FILE", help="A and B are models: embed the lines (or JSON lines) of this file with both."
)
@click.option("--field", metavar="NAME", help="The field of a JSON line that has the text (default: text).")
@click.option(
    "--pooling", nargs=2, metavar="A B", help="Pooling of both models, or - for their own: `--pooling - first`."
)
@click.option(
    "--metric",
    type=click.Choice(["sqeuclidean", "cosine"]),
    default="sqeuclidean",
    show_default=True,
    help="Cost of moving a vector.",
)
@click.option(
    "--paired/--unpaired", default=None, help="Row i of both is the same item (default: for two models, or equal ids)."
)
@click.option(
    "--level",
    type=float,
    default=0.01,
    show_default=True,
    help="Drift is a p-value of at most this: how often chance alone may give it.",
)
@click.option(
    "--permutations",
    type=click.IntRange(19),
    default=199,
    show_default=True,
    metavar="N",
    help="Random relabellings to compare with.",
)
@click.option(
    "--sample",
    type=click.IntRange(2),
    default=200,
    show_default=True,
    metavar="N",
    help="Vectors of each set that are relabelled.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the samples and relabellings.")
@click.option(
    "--page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a page with a map, histograms and the items that moved most.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@options.threads()
@terminable()
def compare(
    a: str, b: str, texts: str | None, field: str | None, pooling: tuple[str, str] | None, page: Path | None,
    as_json: bool, paired: bool | None, threads: int | None, **given: Any,
) -> None:  # fmt: skip
    """Compare two sets of vectors, or two models.

    The verdict is calibrated: the divergence of A and B is compared with those of random relabellings of the same
    vectors. The p-value is the part of them that lie as far apart; the effect is the distance from their mean, in their
    standard deviations.

    \b
    Examples:
      weft drift last-month.npy today.npy
      weft drift all-MiniLM-L6-v2 ./finetuned --texts questions.txt --page drift.html
    """
    from weft.transport.drift.comparing import compare as compared
    from weft.transport.drift.page import page as rendered
    from weft.transport.drift.page import said

    lines: list[str] | None = None
    if texts is not None:
        lines = _lines(texts, field)
        sides = [_embedded(name, lines, how, threads) for name, how in zip((a, b), pooling or ("-", "-"), strict=True)]
        names = ([str(row + 1) for row in range(len(lines))],) * 2
        paired = True if paired is None else paired
    else:
        first, second, first_ids, second_ids = _both(a, b)
        sides, names = [first, second], (first_ids, second_ids)
        paired = paired if paired is not None else first_ids == second_ids and not a.endswith(".npy")
    found = compared(*sides, ids=(names[0], names[1]), paired=paired, threads=threads, **given)
    if page is not None:
        page.write_text(rendered(found, (_short(a), _short(b)), lines), encoding="utf-8")
        screen.note(f"wrote {page}")
    if as_json:
        screen.print_json({"a": a, "b": b, **found.as_dict()})
        return
    click.echo(said(found))
    summary = found.summary
    screen.facts(
        [
            ("divergence", f"{found.verdict.divergence:.5g}"),
            ("p-value", f"{found.verdict.p:.4g} ({found.permutations} relabellings)"),
            ("effect", f"{found.verdict.effect:.2f} standard deviations"),
            ("distance", f"{found.distance:.5g}" + ("" if found.converged else " (not converged)")),
            (
                "displacement",
                f"mean {summary['mean']:.4g}, median {summary['median']:.4g}, largest {summary['max']:.4g}",
            ),
            ("outliers", f"{summary['outliers']:.0f} of {len(found.items):,}"),
            (
                "vectors",
                f"{found.rows[0]:,} and {found.rows[1]:,} of {found.dimension} numbers" + ", paired" * found.paired,
            ),
        ]
    )
    for item in found.worst(5):
        shown = lines[int(item.id) - 1] if lines is not None else item.id
        click.echo(f"  {item.distance:.4g}  {screen.clean(shown[:80])}")


@command.command()
@click.argument("reference")
@click.argument("stream", default="-")
@click.option("-m", "--model", help="The lines of STREAM are texts: embed them with this model.")
@click.option(
    "--window", type=click.IntRange(128, 4096), default=128, show_default=True, help="Vectors of the sliding window."
)
@click.option("--every", type=click.IntRange(2), default=16, show_default=True, help="Vectors between two checks.")
@click.option(
    "--false-alarms",
    type=float,
    default=0.01,
    show_default=True,
    help="Probability of an alarm within --horizon checks if nothing changes.",
)
@click.option(
    "--horizon", type=click.IntRange(1), default=1000, show_default=True, help="Checks that --false-alarms is said for."
)
@click.option(
    "--metrics",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve gauges for Prometheus at /metrics of this port.",
)
@click.option("--webhook", metavar="URL", help="POST the first signal of each alarm there, as JSON.")
@click.option("--stop-on-drift", is_flag=True, help="Exit with code 1 at the first alarm.")
@options.threads()
@terminable()
@click.pass_context
def watch(
    context: click.Context, reference: str, stream: str, model: str | None, metrics: int | None, webhook: str | None,
    stop_on_drift: bool, threads: int | None, **given: Any,
) -> None:  # fmt: skip
    """Watch vectors that come one by one, beside a frozen REFERENCE (.npy, an index, a store).

    STREAM has a JSON array of numbers on each line, or an object with `vector` or `embedding`; - is standard input; a
    .npy file is read by rows. Each check prints a line of JSON. Looking often does not raise more false alarms: the
    evidence is calibrated for all checks of the horizon together.

    \b
    Examples:
      weft drift watch reference.npy today.npy
      tail -f vectors.jsonl | weft drift watch reference.npy --metrics 9200
    """
    from weft.transport.drift.gauges import serve_gauges, tell
    from weft.transport.drift.watching import Detector

    detector = Detector(_vectors(reference)[0], threads=threads, **given)
    gauges = None if metrics is None else serve_gauges(metrics, detector, screen.note)
    alarmed = False
    try:
        for vector in _stream(stream, model, threads):
            signal = detector.observe(vector)
            if gauges is not None:
                gauges["signal"] = signal
            if signal.state not in ("stable", "drift"):
                continue
            click.echo(json.dumps(vars(signal)))
            if signal.state == "drift" and not alarmed and webhook:
                tell(webhook, signal, screen.note)
            alarmed = signal.state == "drift"
            if alarmed and stop_on_drift:
                context.exit(1)
    finally:
        if gauges is not None:
            gauges["server"].shutdown()


@command.command()
@click.argument("model")
@click.option(
    "--baseline",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="File with the texts and their vectors.",
)
@click.option("--update-baseline", is_flag=True, help="Write the baseline from the model as it is now.")
@click.option(
    "--texts",
    metavar="FILE",
    help="Texts of a new baseline, one per line (default: those of the old one, or ten sentences).",
)
@click.option(
    "--limit", type=float, default=MAX_COSINE_DRIFT, show_default=True, help="Largest 1 - cosine that is not drift."
)
@click.option("--enforce", is_flag=True, help="Fail where the model is not on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@options.threads()
@click.pass_context
def gate(context: click.Context, **given: Any) -> None:
    """Fail a build when a model's vectors differ from a committed baseline.

    Exit code 0: no drift, or the model is absent and --enforce is not given; 1: drift; 2: the model is absent and
    --enforce is given; 3: a missing or broken baseline, or the model cannot be loaded.

    \b
    Examples:
      weft drift gate all-MiniLM-L6-v2 --baseline baseline.json --update-baseline
      weft drift gate all-MiniLM-L6-v2 --baseline baseline.json --enforce
    """
    from weft.errors import DownloadError, NotFoundError, WeftError

    try:
        code = _gate(**given)
    except (NotFoundError, DownloadError) as error:
        if getattr(error, "where", "") == "baseline":
            code = GATE_ERROR
        else:
            code = GATE_ABSENT if given["enforce"] else 0
        click.echo(f"weft: {'' if code else 'skipped: '}{error}", err=True)
    except (WeftError, OSError, ValueError) as error:
        click.echo(f"weft: {error}", err=True)
        code = GATE_ERROR
    context.exit(code)


@command.command()
@click.argument("old")
@click.argument("new")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the map to this .npz file."
)
@click.option(
    "--method",
    type=click.Choice(["procrustes", "linear", "transport"]),
    default="procrustes",
    show_default=True,
    help="A rotation, least squares, or a rotation found by transport between items that are not paired.",
)
@click.option("--unpaired", is_flag=True, help="With --method transport: rows of OLD and NEW are not the same items.")
@click.option("--texts", metavar="FILE", help="OLD and NEW are models: embed the lines of this file with both.")
@click.option("--field", metavar="NAME", help="The field of a JSON line that has the text (default: text).")
@click.option(
    "--pooling", nargs=2, metavar="OLD NEW", help="Pooling of both models, or - for their own: `--pooling first -`."
)
@click.option("-k", default=10, show_default=True, help="Neighbours that recall is measured with.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@options.threads()
@terminable()
def align(
    old: str, new: str, output: Path | None, texts: str | None, field: str | None, unpaired: bool, as_json: bool,
    pooling: tuple[str, str] | None,
    threads: int | None, **given: Any,
) -> None:  # fmt: skip
    """Learn a map from the old model's vectors to the new one's, and measure the recall that it keeps.

    OLD and NEW hold the same items: indexes and stores by their ids, files in the same order. With the map, vectors
    that were not embedded again yet can be searched with queries of the new model: `weft search` and
    `weft store search` take it with --map.

    \b
    Examples:
      weft drift align old.npy new.npy -o old-to-new.npz
      weft drift align old-model new-model --texts documents.txt -o old-to-new.npz
    """
    from weft.transport.drift.aligning import align as aligned

    if texts is not None:
        lines = _lines(texts, field)
        embedders = [_embedder(name, how, threads) for name, how in zip((old, new), pooling or ("-", "-"))]
        sides = [one.encode(lines) for one in embedders]
        models = str(embedders[0].fingerprint), str(embedders[1].fingerprint)
    else:
        sides, models = list(_both(old, new)[:2]), (_fingerprint(old), _fingerprint(new))
    found = replace(aligned(*sides, paired=not unpaired, threads=threads, **given), models=models)
    if output is not None:
        found.save(output)
        screen.note(f"wrote {output}")
    facts = {
        "method": found.method,
        "rows": found.rows,
        "recall": found.recall,
        "query_recall": found.query_recall,
        "k": found.k,
        "held_out": found.held_out,
    }
    if as_json:
        screen.print_json(facts)
        return
    screen.facts([(name, f"{value:.4g}" if isinstance(value, float) else value) for name, value in facts.items()])


def _short(name: str) -> str:
    return Path(name).name or name


def _embedder(model: str, pooling: str, threads: int | None) -> Embedder:
    from weft.embed import Embedder

    how = None if pooling == "-" else pooling
    return Embedder(model, truncate="head", threads=threads, pooling=how)


def _embedded(model: str, texts: list[str], pooling: str, threads: int | None) -> np.ndarray:
    return _embedder(model, pooling, threads).encode(texts)


def _fingerprint(source: str) -> str:
    """That of an index or a store; empty for a file of vectors, which does not say."""
    from weft.embed.index.files import HEADER, read_header

    path = Path(source)
    if (path / HEADER).is_file():
        return str(read_header(path).about.get("fingerprint") or "")
    if path.suffix == ".npy":
        return ""
    from weft.embed.stores import open_store

    with open_store(source) as store:
        return store.route().query or ""


def _both(a: str, b: str) -> tuple[np.ndarray, np.ndarray, list[str], list[str]]:
    """Vectors and ids of both; indexes and stores of the same ids in one order, since each has an order of its own."""
    (first, ids), (second, others) = _vectors(a), _vectors(b)
    if a.endswith(".npy") or b.endswith(".npy") or ids == others or sorted(ids) != sorted(others):
        return first, second, ids, others
    places = {id: row for row, id in enumerate(others)}
    if len(places) < len(others):  # chunks of one document
        return first, second, ids, others
    return first, second[[places[id] for id in ids]], ids, ids


def _vectors(source: str) -> tuple[np.ndarray, list[str]]:
    """The vectors of a file, an index or a store, and their ids."""
    import numpy as np

    from weft.embed.index.files import HEADER
    from weft.errors import FormatError, InputError, NotFoundError

    path = Path(source)
    if source.startswith(("postgresql://", "postgres://")) or (path.is_file() and path.suffix != ".npy"):
        return _stored(source)
    if (path / HEADER).is_file():
        from weft import Index

        index = Index.open(path, mapped=True)
        ids = index.ids
        if not ids:
            raise InputError("drift", f"{source} has no vectors")
        return np.stack([index.vector(id) for id in ids]), [str(id) for id in ids]
    if not path.is_file():
        advice = "give an .npy file, an index, or a store; for two models give --texts FILE"
        raise NotFoundError("drift", f"{source} does not exist", advice=advice)
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise FormatError(source, f"is not an array of numpy: {error}") from None
    return vectors, [str(row) for row in range(len(vectors))]


def _stored(source: str) -> tuple[np.ndarray, list[str]]:
    import numpy as np

    from weft.embed.stores import open_store
    from weft.errors import InputError

    store = open_store(source)
    served = store.route().query
    rows = [] if served is None else list(store.vectors(served))
    if not rows:
        raise InputError("drift", f"{source} has no vectors")
    return np.stack([row[2] for row in rows]), [row[0] for row in rows]


def _stream(source: str, model: str | None, threads: int | None) -> Any:
    """Vectors of a .npy file, of JSON lines, or of lines of text."""
    import numpy as np

    from weft.cli.texts import read_rows
    from weft.errors import InputError

    if source.endswith(".npy"):
        yield from _vectors(source)[0]
        return
    if model is not None:
        from weft.embed import Embedder

        embedder = Embedder(model, truncate="head", threads=threads)
        for row in read_rows(source, None):
            yield embedder.encode([row["text"]])[0]
        return
    with contextlib.ExitStack() as held:
        lines = sys.stdin if source == "-" else held.enter_context(Path(source).open(encoding="utf-8"))
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
                value = value.get("vector", value.get("embedding")) if isinstance(value, dict) else value
                yield np.array(value, np.float32)
            except (ValueError, TypeError) as error:
                advice = "give a JSON array of numbers on each line, or --model for lines of text"
                raise InputError(
                    "drift", f"is not a vector: {error}", field="line", index=number, advice=advice
                ) from None


def _lines(source: str, field: str | None) -> list[str]:
    """The texts of a file, at least two: its lines, or a field of JSON lines."""
    from weft.cli.texts import read_rows
    from weft.errors import InputError

    found = [row[field or "text"] for row in read_rows(source, field) if row[field or "text"].strip()]
    if len(found) < 2:
        raise InputError("drift", f"{source} has {len(found)} texts; at least two are needed", field="--texts")
    return found


def _gate(
    model: str, baseline: Path, update_baseline: bool, texts: str | None, limit: float, enforce: bool, as_json: bool,
    threads: int | None,
) -> int:  # fmt: skip
    from weft.errors import InputError
    from weft.transport.drift import baselines

    kept = {} if update_baseline and not baseline.is_file() else baselines.read_baseline(baseline)
    lines = _lines(texts, None) if texts is not None else kept.get("texts", list(baselines.SENTENCES))
    now = _embedded(model, lines, "-", threads)
    if update_baseline:
        baselines.write_baseline(baseline, model, lines, now)
        screen.note(f"wrote {baseline}: {len(lines)} vectors of {now.shape[1]} numbers")
        return 0
    if texts is not None and lines != kept["texts"]:
        raise InputError("baseline", "has other texts", advice="leave out --texts, or use --update-baseline")
    apart = baselines.moved(baseline, kept, now)
    worst = int(apart.argmax())
    drifted = bool(apart[worst] > limit)
    if as_json:
        screen.print_json({"drifted": drifted, "largest": float(apart[worst]), "limit": limit, "text": lines[worst]})
    else:
        word = "drift" if drifted else "no drift"
        click.echo(f"{word}: largest 1 - cosine {apart[worst]:.3g} (limit {limit:g}), for {lines[worst][:60]!r}")
    return GATE_DRIFT if drifted else 0
