"""weft export: a model as a folder that C programs run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click

from weft.cli import screen

SHARD_MB = 256


@contextmanager
def merged(model: str, adapter: Path | None, beside: Path, type: str | None, data: Path | None) -> Iterator[str]:
    """The model to export: `model`, or until the end of the context a merged one with both names."""
    if adapter is None:
        yield model
        return
    from weft.train.merge import merge
    from weft.weights.sources import locate

    base = locate(model).path
    name = f"{Path(model).stem if Path(model).exists() else Path(model).name}-{adapter.resolve().name}"
    beside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".merged-", dir=beside) as folder:
        path = Path(folder) / f"{name}{base.suffix if base.is_file() else ''}"
        merge(model, adapter, path, type=type, data=data)
        yield str(path)


def write_alone(
    model: str,
    adapter: Path | None,
    output: Path,
    purpose: str | None,
    force: bool,
    as_json: bool,
    others: Mapping[str, object],
) -> None:
    """Write the adapter alone and say what was written; `others` are options that do not go with it."""
    from weft.export import export_adapter

    if adapter is None:
        raise click.UsageError("--alone is for --adapter")
    if given := [name for name, value in others.items() if value]:
        raise click.UsageError(f"--alone goes without {', '.join(given)}")
    done = export_adapter(model, adapter, output, purpose=purpose, overwrite=force)
    if as_json:
        fields = {"path": str(done.path), "rank": done.rank, "bytes": done.nbytes, "base": done.base}
        screen.print_json({**fields, "sha256": done.digest})
        return
    screen.facts(
        [("rank", str(done.rank)), ("MB", f"{done.nbytes / 1e6:.1f}"), ("base", done.base), ("sha256", done.digest)]
    )
    screen.note(f"{output} written")


@click.command()
@click.argument("model")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The folder to write; with --alone the file."
)
@click.option(
    "--for",
    "purpose",
    type=click.Choice(["embed", "generate"]),
    help="What the bundle is for; default: what the model is for.",
)
@click.option(
    "--compute", metavar="TYPE", help="Arithmetic for activations: f32, bf16, f16 or int8 (faster, less exact)."
)
@click.option(
    "--adapter",
    type=click.Path(path_type=Path),
    help="Add this LoRA adapter to the weights first, as `weft merge` does: the bundle is then a model of its own.",
)
@click.option(
    "--alone",
    is_flag=True,
    help="With --adapter: write the adapter alone, as one file for bundles of MODEL that have --adapters.",
)
@click.option(
    "--adapters",
    is_flag=True,
    help="Leave room for LoRA adapters, which programs load beside the model and choose by call.",
)
@click.option("--type", metavar="TYPE", help="With --adapter: what changed matrices are stored as, as in `weft merge`.")
@click.option("--data", type=click.Path(path_type=Path), help="With --adapter: rows to measure the merged model on.")
@click.option("--context", type=click.IntRange(1), help="Longest text of a generator in tokens; default: the model's.")
@click.option(
    "--gpu/--no-gpu",
    default=None,
    help="Also write what a browser needs to run the model on a GPU (WebGPU); default: if the model can run there.",
)
@click.option(
    "--shard-mb", type=click.IntRange(1), metavar="MB", help=f"Largest file of weights (default: {SHARD_MB})."
)
@click.option("--force", is_flag=True, help="Replace OUTPUT if it is a bundle, or with --alone such a file.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    model: str,
    output: Path,
    purpose: str | None,
    compute: str | None,
    adapter: Path | None,
    alone: bool,
    adapters: bool,
    type: str | None,
    data: Path | None,
    context: int | None,
    gpu: bool | None,
    shard_mb: int | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write MODEL as a folder that C programs and browsers run.

    It has the planned program, the weights, the tokenizer and a manifest with the digest of every file. `weft.h` and
    libweft run it, with the same kernels and the same results: docs/howto/embed-in-c.md.

    \b
    Examples:
      weft export all-MiniLM-L6-v2 -o minilm.weft
      weft export smollm2-135m-instruct -o smol.weft
      weft export ./my-embedder -o my.weft --compute int8
      weft export smollm2-135m-instruct -o mine.weft --adapter my-lora --type q8_0
      weft export smollm2-135m-instruct -o smol.weft --adapters
      weft export smollm2-135m-instruct -o my-lora.safetensors --adapter my-lora --alone
    """
    from weft.cli.counting import counted
    from weft.export import export

    if adapter is None and (type is not None or data is not None):
        raise click.UsageError("--type and --data are for --adapter")
    if alone:
        others = {"--adapters": adapters, "--type": type, "--data": data, "--compute": compute, "--context": context}
        others |= {"--gpu/--no-gpu": gpu is not None, "--shard-mb": shard_mb}
        write_alone(model, adapter, output, purpose, force, as_json, others)
        return
    with merged(model, adapter, output.parent, type, data) as source, counted("MB") as tell:
        done = export(
            source,
            output,
            purpose=purpose,
            compute=compute,
            context=context,
            adapters=adapters,
            gpu=gpu,
            shard_bytes=(shard_mb or SHARD_MB) << 20,
            overwrite=force,
            tell=lambda count, total: tell(count >> 20, total >> 20),
        )
    if as_json:
        fields = {"path": str(done.path), "kind": done.kind, "files": done.files, "bytes": done.nbytes}
        screen.print_json({**fields, "sha256": done.digest})
        return
    size = f"{done.nbytes / 1e6:.1f}"
    screen.facts([("kind", done.kind), ("files", str(done.files)), ("MB", size), ("sha256", done.digest)])
    screen.note(f"{output} written")
