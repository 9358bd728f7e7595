"""weft quantize: a model in fewer bits, with what each tensor lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options, screen

if TYPE_CHECKING:
    from weft.quantise import Calibration, Plan, Quantising, QuantisingFolder, Written


@click.command()
@click.argument("model")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="A new .gguf file or folder.")
@click.option(
    "--type",
    "kind",
    metavar="TYPE",
    help="f16, bf16, q8_0, q6_k, q5_k_m, q5_1, q5_0, q4_k_m, q4_k_s, q4_1, q4_0, iq4_nl, iq4_xs, mxfp4, q3_k_m, q2_k; "
    "for folders int8, int4, int4-asym.",
)
@click.option(
    "--group",
    metavar="COLUMNS",
    help="Columns that share a scale, for int4 and int4-asym: 32, 64, 128, or row for all of a row.  [default: 64]",
)
@click.option(
    "--rotate",
    type=click.Choice(["inner", "all"]),
    help="Rotate values and what output and down projections read (inner), or the residual stream as well, so that no "
    "channel stands out; for int8, int4 and int4-asym. Only weft reads the folder then.",
)
@click.option(
    "--tensor",
    "exceptions",
    multiple=True,
    metavar="NAME=TYPE",
    help="Another type for matrices whose names fit a regular expression; may be given several times.",
)
@click.option(
    "--size",
    metavar="SIZE",
    help="Instead of a type: the best of this size, as 100MB; each matrix gets its own.",
)
@click.option(
    "--max-loss",
    type=float,
    metavar="PART",
    help="Instead of a type: the smallest that loses at most this part of the squares of products, as 0.003.",
)
@click.option(
    "--calibrate",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="TEXT",
    help="A text like those the model will read: columns that it uses much lose less.",
)
@click.option(
    "--tokens", type=click.IntRange(min=2), default=65_536, show_default=True, help="At most so many of TEXT."
)
@click.option(
    "--imatrix",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Importance from a file instead: llama.cpp's imatrix, .gguf or .dat.",
)
@click.option(
    "--save-imatrix",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Keep what --calibrate found, as llama.cpp reads it (.gguf, or .dat for its older form).",
)
@click.option(
    "--feedback",
    is_flag=True,
    help="Let later columns make up for what rounding a column misses (GPTQ); needs --calibrate.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="TEXT",
    help="Hold the file to MODEL on a text, and write its card: OUTPUT.md and OUTPUT.report.json.",
)
@click.option(
    "--report-tokens", type=click.IntRange(min=2), default=8192, show_default=True, help="At most so many of it."
)
@click.option(
    "--mmproj",
    is_flag=True,
    help="Write the picture tower of a folder instead, as the mmproj file beside the GGUF file of its text.",
)
@click.option("--force", is_flag=True, help="Replace OUTPUT if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@options.threads()
def command(
    model: str,
    output: Path,
    kind: str | None,
    group: str | None,
    rotate: str | None,
    exceptions: tuple[str, ...],
    size: str | None,
    max_loss: float | None,
    calibrate: Path | None,
    tokens: int,
    imatrix: Path | None,
    save_imatrix: Path | None,
    feedback: bool,
    report: Path | None,
    report_tokens: int,
    mmproj: bool,
    force: bool,
    as_json: bool,
    threads: int | None,
) -> None:
    """Write MODEL in fewer bits: as GGUF, or as a folder of integers.

    The scales of each block are searched, so that less is lost than by rounding. Types with _m and _s give the
    matrices that matter most more bits. Rows that do not fit a type's blocks get the next wider one that they fit. What
    each matrix lost is written beside OUTPUT as JSON. A run that was stopped goes on when it is started again.

    Config, vocabulary and chat template of a folder go along, and llama.cpp reads the file, or it is refused.

    int8, int4 and int4-asym make a folder of a folder: integers of 8 bits with a scale for each row, or of 4 bits with
    a scale, and for int4-asym a zero point, for each --group of columns. Its layout is that of compressed-tensors,
    of which transformers reads int8 and int4 too; tokenizer, template and all else that was in the folder go along.

    \b
    Examples:
      weft quantize model-f16.gguf -o model-q4.gguf --type q4_k_m
      weft quantize ./SmolLM2-135M -o smollm2-q8.gguf --type q8_0
      weft quantize model-f16.gguf -o small.gguf --type q4_0 --tensor ffn_down=q6_k
      weft quantize ./model -o small.gguf --size 100MB --calibrate texts.txt
      weft quantize ./model -o model-int4 --type int4 --group 64
      weft quantize ./SmolVLM-256M -o mmproj-f16.gguf --mmproj --type f16
    """
    from weft.quantise.folder import FOLDER_TYPES, QuantisingFolder
    from weft.runtime.threads import plan_threads
    from weft.weights.sources import locate

    _check_choice(None if mmproj else kind, size, max_loss, group, rotate, tower=mmproj)
    place, count = locate(model).path, plan_threads(threads).count
    more: dict[str, Any] = {"threads": count, "overwrite": force}
    chosen = {"size": size, "max_loss": max_loss, "calibrate": calibrate, "imatrix": imatrix, "feedback": feedback}
    if mmproj:
        work: Quantising | QuantisingFolder = _tower(place, output, kind, exceptions, more, report=report, **chosen)
    elif kind in FOLDER_TYPES:
        _no_gguf(tensor=exceptions, report=report, **chosen)
        work = QuantisingFolder(place, output, type=str(kind), group=_columns(group), rotate=rotate, **more)
    else:
        seen = _importance(place, calibrate, tokens, imatrix, save_imatrix, count)
        work = _gguf(place, output, kind, exceptions, size, max_loss, seen, feedback, more)
    _show(work, _written(work), output, as_json)
    _report(place, output, report, report_tokens, threads)


def _written(work: Quantising | QuantisingFolder) -> list[Written]:
    """All tensors, once they are written; a bar shows how far it is."""
    from weft.cli.counting import counted
    from weft.quantise import QuantisingFolder

    if isinstance(work, QuantisingFolder):
        _check_rotation(work)
    written = []
    with counted("tensors") as tell:
        for one in work:
            written.append(one)
            tell(len(written), len(work))
    return written


def _show(work: Quantising | QuantisingFolder, written: Sequence[Written], output: Path, as_json: bool) -> None:
    """What was written, and what was lost."""
    from weft.quantise.folder import MANIFEST

    changed = [one for one in written if one.before != one.after]
    before, after = work.given_bytes, sum(one.nbytes for one in written)
    worst = max(changed, key=lambda one: one.lost, default=None)
    if as_json:
        rows = [{"name": one.name, "from": one.before, "to": one.after, "lost": one.lost} for one in changed]
        screen.print_json({"path": str(output), "bytes": after, "bytes_before": before, "tensors": rows})
        return
    facts = [
        ("tensors", f"{len(changed)} of {len(written)} changed"),
        ("MB", f"{after / 1e6:.1f} of {before / 1e6:.1f}"),
    ]
    if worst is not None:
        facts.append(("most lost", f"{100 * worst.lost:.3g} % of {worst.name}'s square ({worst.after})"))
    screen.facts(facts)
    manifest = MANIFEST if output.is_dir() else f"{output.name}.json"
    screen.note(f"{output} written, and {manifest} with what each matrix lost")


def _no_gguf(**given: Any) -> None:
    """Refuse options that only GGUF's types have so far."""
    from weft.errors import InputError

    for name, value in given.items():
        if value:
            field = name.replace("_", "-")
            raise InputError(
                "quantize", "is for GGUF's types", field=field, advice="leave it out, or choose such a type"
            )


def _check_rotation(work: QuantisingFolder) -> None:
    """Hold every rotated tensor to what it was, and say that the head is one of its own now."""
    from weft.cli.counting import counted
    from weft.weights.rotation import EMBEDDING, HEAD

    if work.rotated is None:
        return
    with counted("tensors checked") as tell:
        apart = work.check(tell)
    screen.note(f"rotated: in float64 every tensor gives the same results, {apart:.0e} apart at most")
    if work.rotated.untied:
        screen.note(f"the model tied {HEAD} to {EMBEDDING}; rotated they differ, and both are written")


def _columns(group: str | None) -> int | str | None:
    return int(group) if group is not None and group.isdecimal() else group


def _check_choice(
    kind: str | None, size: str | None, max_loss: float | None, group: str | None, rotate: str | None, *, tower: bool
) -> None:
    from weft.errors import InputError
    from weft.quantise.folder import FOLDER_TYPES

    if kind in FOLDER_TYPES:
        return
    if not tower and sum(given is not None for given in (kind, size, max_loss)) != 1:
        raise InputError("quantize", "is needed, or one of --size and --max-loss", field="type", given=kind)
    if group is not None:
        raise InputError("quantize", "is for int4 and int4-asym", field="group", given=group)
    if rotate:
        advice = "choose --type int4; GGUF has no words for what a rotated model does while it runs"
        raise InputError("quantize", "is for int8, int4 and int4-asym", field="rotate", given=rotate, advice=advice)


def _gguf(
    place: Path,
    output: Path,
    kind: str | None,
    exceptions: Sequence[str],
    size: str | None,
    max_loss: float | None,
    importance: tuple[dict[str, Any], Calibration | None],
    feedback: bool,
    more: dict[str, Any],
) -> Quantising:
    """The writing of a GGUF file, by a named mixture or by the plan for a size or a loss."""
    from weft.errors import InputError
    from weft.quantise import Quantising

    seen, text = importance
    if feedback and text is None:
        raise InputError("quantize", "needs --calibrate", field="feedback", advice="name a text")
    plan = kind if kind is not None else _chosen(place, size, max_loss, seen, more["threads"])
    more = {**more, "importance": seen, "feedback": text if feedback else None}
    return Quantising(place, output, type=plan, exceptions=_pairs(exceptions), **more)


def _tower(
    place: Path, output: Path, kind: str | None, exceptions: Sequence[str], more: dict[str, Any], **given: Any
) -> Quantising:
    """The writing of a picture tower."""
    from weft.errors import InputError
    from weft.quantise import Quantising

    for name, value in given.items():
        if value:
            field = name.replace("_", "-")
            raise InputError("quantize", "is for the text part", field=field, advice="leave it out, or --mmproj")
    return Quantising(place, output, type=kind or "f16", exceptions=_pairs(exceptions), tower=True, **more)


def _report(source: Path, output: Path, text: Path | None, tokens: int, threads: int | None) -> None:
    """The card of what was written, where a text to measure it on is given."""
    if text is None:
        return
    from weft.cli.counting import counted
    from weft.measure import Comparison
    from weft.measure.card import facts_of, write_card

    comparison = Comparison(source, output, text, tokens=tokens, threads=threads)
    with counted("tokens compared") as tell:
        for done in comparison:
            tell(done, comparison.targets)
    written = write_card(facts_of(source.name, output, comparison.result(), text.name), output)
    screen.note(f"{written[0].name} and {written[1].name} say what it lost")


def _pairs(exceptions: Sequence[str]) -> list[tuple[str, str]]:
    """Parts of names and the types that --tensor gives to them."""
    from weft.errors import InputError

    pairs = []
    for given in exceptions:
        part, found, wanted = given.rpartition("=")
        if not (part and found and wanted):
            raise InputError("quantize", "must be NAME=TYPE", field="tensor", given=given)
        pairs.append((part, wanted))
    return pairs


def _chosen(place: Path, size: str | None, max_loss: float | None, seen: Mapping[str, Any], threads: int) -> Plan:
    """The plan for a size or a loss."""
    from weft.cli.counting import counted
    from weft.quantise import choose_plan
    from weft.quantise.source import open_source

    tensors = open_source(place).tensors
    limit = None if size is None else _bytes(size)
    with counted("matrices weighed") as tell:
        return choose_plan(
            tensors,
            size=limit,
            max_loss=max_loss,
            importance=seen,
            widen=place.is_dir(),
            threads=threads,
            tell=tell,
        )


def _bytes(given: str) -> int:
    """How many bytes 100MB, 1.5 GB or 700000 are."""
    import re

    from weft.errors import InputError

    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([kMG]?)B?", given.strip())
    if found is None:
        raise InputError("quantize", "must be a number of bytes, as 100MB", field="size", given=given)
    unit = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}[found[2]]
    return int(float(found[1]) * unit)


def _importance(
    place: Path, calibrate: Path | None, tokens: int, imatrix: Path | None, save: Path | None, threads: int
) -> tuple[dict[str, Any], Calibration | None]:
    """How much each column of each matrix matters: measured on a text, or from a file; and that text."""
    from weft.cli.counting import counted
    from weft.errors import InputError
    from weft.quantise import read_imatrix, write_imatrix
    from weft.quantise.calibration import Calibration
    from weft.quantise.imatrix import fitting

    if calibrate is not None and imatrix is not None:
        raise InputError("quantize", "excludes --imatrix", field="calibrate", advice="give one of them")
    if save is not None and calibrate is None:
        raise InputError("quantize", "needs --calibrate", field="save-imatrix", advice="there is nothing to keep")
    if calibrate is None:
        return {} if imatrix is None else fitting(read_imatrix(imatrix), place), None
    text = calibrate.read_text(encoding="utf-8", errors="replace")
    work = Calibration(place, text, tokens=tokens, threads=threads)
    with counted("steps of calibration") as tell:
        seen = work.importance(tell)
    if save is not None:
        write_imatrix(save, seen, text=calibrate.name, windows=len(work.windows), window=len(work.windows[0]))
    return {name: one.mean for name, one in seen.items()}, work
