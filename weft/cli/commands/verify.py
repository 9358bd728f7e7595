"""weft verify: check the vectors of an embedding model on this machine, or an index and its model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from weft.cli import options, screen

WORDS = {True: "right", False: "WRONG", None: "unknown"}


@click.command()
@click.argument("model", metavar="[MODEL|INDEX]", default=options.DEFAULT_EMBEDDER)
@options.encoder_compute(default="f32")
@click.option(
    "-m", "--model", "now", help="For an index: name or path of its model (default: the one that the index names)."
)
@options.remote("model, if an index was built with one")
@options.threads()
@click.option(
    "--device",
    metavar="DEVICE",
    help="Compare this device with the CPU, of a generator too: gpu, or gpu:1 for the second GPU.",
)
@click.option(
    "--golden", metavar="NAME", help="For a folder or file: the catalogue model whose vectors it should give."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(
    context: click.Context,
    model: str,
    compute: str,
    threads: int | None,
    device: str | None,
    golden: str | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Check that an embedding model gives the right vectors.

    Its vectors are compared with those of another implementation, if the catalogue has some; texts alone with the same
    texts in a batch and in another order; every length alone with itself in a batch; and one number of threads with
    another. All comparisons but the first must agree to the bit. The exit code is 1 if something is wrong.

    With --device, a model on a GPU is compared with itself on the CPU: the largest difference, how well the order of
    similarities or logits agrees (Spearman), how many greedy tokens are the same, and whether the device gives the same
    bits in every batch. Embedding models and generators can be compared.

    For an index, the checksums of its files and the fingerprint of its model are checked, and its canary texts are
    embedded again. A difference is an error.

    \b
    Examples:
      weft verify
      weft verify all-MiniLM-L6-v2 --compute int8
      weft verify ./my-model --golden all-MiniLM-L6-v2 --json
      weft verify smollm2-135m-instruct --device gpu
      weft verify notes.index
      weft verify notes.index --model ./where-the-model-is-now
    """
    from weft.embed.index.files import HEADER
    from weft.embed.verification import verify
    from weft.errors import NotFoundError

    if device is not None:
        _refuse(context, "cannot be combined with --device, which compares in f32")
        return _verify_device(model, device, threads, as_json)
    if (Path(model) / HEADER).is_file():
        _refuse(context, "applies to a model; an index is verified with the settings it was built with")
        return _verify_index(Path(model), threads, as_json, asked)
    if model.endswith(".index") and not Path(model).exists():
        raise NotFoundError("verify", f"{model} does not exist", advice="build an index with `weft index build`")
    if asked["now"] is not None:
        raise click.UsageError(f"--model applies to an index, and {model} is not one; give the model as the argument")
    if asked["base_url"] is not None:
        raise click.UsageError(
            "--base-url applies to an index that a server's model built; a server's model cannot be verified"
        )
    found = verify(model, compute=compute, threads=threads, golden=golden)
    if as_json:
        screen.print_json(
            {"model": model, "compute": compute, "passed": found.passed, "checks": list(map(asdict, found.checks))}
        )
    else:
        rows = [(check.name, WORDS[check.passed], check.detail) for check in found.checks]
        screen.table(("check", "result", "detail"), rows)
    if not found.passed:
        raise click.exceptions.Exit(1)


def _refuse(context: click.Context, why: str) -> None:
    """A usage error that names the first option that was given though it has no meaning here."""
    for name in ("compute", "golden"):
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name} {why}")


def _verify_device(model: str, device: str, threads: int | None, as_json: bool) -> None:
    from weft.measure.parity import parity

    found = parity(model, device, threads=threads)
    if as_json:
        screen.print_json({**asdict(found), "passed": found.passed})
    else:
        rows = [
            ("device", found.device),
            ("largest difference", f"{found.largest:.2g} of {'vectors' if found.agreement is None else 'logits'}"),
            ("Spearman", f"{found.spearman:.6f}"),
            *([] if found.agreement is None else [("greedy tokens", f"{found.agreement:.1%} are the CPU's")]),
            ("same bits in every batch", "yes" if found.same_bits else "NO"),
            ("result", WORDS[found.passed]),
        ]
        screen.facts(rows, title=f"{model} beside the CPU")
    if not found.passed:
        raise click.exceptions.Exit(1)


def _verify_index(path: Path, threads: int | None, as_json: bool, asked: dict[str, Any]) -> None:
    from weft.embed.fingerprint import brief
    from weft.embed.pipeline.indexing import open_searchable

    server = options.server_of(asked)
    index = open_searchable(path, asked["now"], threads=threads, server=server, verify=True)
    facts = {name: index.info[name] for name in ("count", "canaries", "fingerprint")}
    if as_json:
        screen.print_json({"index": str(path), "passed": True, **facts})
    else:
        assert index.embedder is not None
        model = f"{index.embedder.info.get('model')} ({brief(facts['fingerprint'])})"
        note = f"checksums right; {facts['canaries']} canary texts still have the same vectors, by {model}"
        click.echo(f"{screen.many(facts['count'], 'row')}, {note}")
