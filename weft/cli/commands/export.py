"""weft export: a model as a folder that C programs run."""

from __future__ import annotations

from pathlib import Path

import click

from weft.cli import screen


@click.command()
@click.argument("model")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The folder to write.")
@click.option(
    "--for",
    "purpose",
    type=click.Choice(["embed", "generate"]),
    help="What the bundle is for; default: what the model is for.",
)
@click.option(
    "--compute", metavar="TYPE", help="Arithmetic for activations: f32, bf16, f16 or int8 (faster, less exact)."
)
@click.option("--context", type=click.IntRange(1), help="Longest text of a generator in tokens; default: the model's.")
@click.option("--shard-mb", type=click.IntRange(1), default=256, show_default=True, help="Largest file of weights.")
@click.option("--force", is_flag=True, help="Replace OUTPUT if it is a bundle.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    model: str,
    output: Path,
    purpose: str | None,
    compute: str | None,
    context: int | None,
    shard_mb: int,
    force: bool,
    as_json: bool,
) -> None:
    """Write MODEL as a folder that C programs run without Python.

    It has the planned program, the weights, the tokenizer and a manifest with the digest of every file. `weft.h` and
    libweft run it, with the same kernels and the same results: docs/howto/embed-in-c.md.

    \b
    Examples:
      weft export all-MiniLM-L6-v2 -o minilm.weft
      weft export smollm2-135m-instruct -o smol.weft
      weft export ./my-embedder -o my.weft --compute int8
    """
    from weft.cli.counting import counted
    from weft.export import export

    with counted("MB") as tell:
        done = export(
            model,
            output,
            purpose=purpose,
            compute=compute,
            context=context,
            shard_bytes=shard_mb << 20,
            overwrite=force,
            tell=lambda count, total: tell(count >> 20, total >> 20),
        )
    if as_json:
        fields = {"path": str(done.path), "kind": done.kind, "files": done.files, "bytes": done.nbytes}
        screen.print_json({**fields, "sha256": done.digest})
        return
    screen.facts(
        [("kind", done.kind), ("files", str(done.files)), ("MB", f"{done.nbytes / 1e6:.1f}"), ("sha256", done.digest)]
    )
    screen.note(f"{output} written")
