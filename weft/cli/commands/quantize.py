"""weft quantize: a model in fewer bits, with what each tensor lost."""

from __future__ import annotations

from pathlib import Path

import click

from weft.cli import options, screen


@click.command()
@click.argument("model")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="A new .gguf file.")
@click.option(
    "--type",
    "kind",
    required=True,
    metavar="TYPE",
    help="f16, bf16, q8_0, q6_k, q5_k_m, q5_1, q5_0, q4_k_m, q4_k_s, q4_1, q4_0, iq4_nl, iq4_xs, mxfp4, q3_k_m, q2_k.",
)
@click.option(
    "--tensor",
    "exceptions",
    multiple=True,
    metavar="NAME=TYPE",
    help="Another type for matrices whose names fit a regular expression; may be given several times.",
)
@click.option("--force", is_flag=True, help="Replace OUTPUT if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@options.threads()
def command(
    model: str,
    output: Path,
    kind: str,
    exceptions: tuple[str, ...],
    force: bool,
    as_json: bool,
    threads: int | None,
) -> None:
    """Write MODEL, a GGUF file or a folder of safetensors, as GGUF with its matrices in fewer bits.

    The scales of each block are searched, so that less is lost than by rounding. Types with _m and _s give the
    matrices that matter most more bits. Rows that do not fit a type's blocks get the next wider one that they fit. What
    each matrix lost is written beside OUTPUT as JSON. A run that was stopped goes on when it is started again.

    Config, vocabulary, special tokens and chat template of a folder go along, and llama.cpp reads the file. What GGUF
    has no words for is refused.

    \b
    Examples:
      weft quantize model-f16.gguf -o model-q4.gguf --type q4_k_m
      weft quantize ./SmolLM2-135M -o smollm2-q8.gguf --type q8_0
      weft quantize model-f16.gguf -o small.gguf --type q4_0 --tensor ffn_down=q6_k
    """
    from weft.cli.counting import counted
    from weft.errors import InputError
    from weft.quantise import Quantising
    from weft.runtime.threads import plan_threads
    from weft.weights.sources import locate

    pairs = []
    for given in exceptions:
        part, found, wanted = given.rpartition("=")
        if not (part and found and wanted):
            raise InputError("quantize", "must be NAME=TYPE", field="tensor", given=given)
        pairs.append((part, wanted))
    place = locate(model).path
    work = Quantising(place, output, type=kind, exceptions=pairs, threads=plan_threads(threads).count, overwrite=force)
    written = []
    with counted("tensors") as tell:
        for one in work:
            written.append(one)
            tell(len(written), len(work))
    changed = [one for one in written if one.before != one.after]
    before = sum(work.tensors[one.name].nbytes for one in written)
    after = sum(one.nbytes for one in written)
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
    screen.note(f"{output} written, and {output.name}.json with what each matrix lost")
