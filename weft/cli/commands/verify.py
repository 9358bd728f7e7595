"""weft verify: whether an embedding model gives the right vectors on this machine, and an index still has its model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from weft.cli import options, screen

WORDS = {True: "right", False: "WRONG", None: "not known"}


@click.command()
@click.argument("model", metavar="[MODEL|INDEX]", default=options.DEFAULT_EMBEDDER)
@options.encoder_compute(default="f32")
@click.option("-m", "--model", "now", help="Of an index: where its model is now (default: what the index says).")
@options.remote("model, where an index is for one")
@options.threads()
@click.option("--golden", metavar="NAME", help="The catalogue's model whose vectors a folder or file should give.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def command(
    context: click.Context,
    model: str,
    compute: str,
    threads: int | None,
    golden: str | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Try out an embedding model: are its vectors right here?

    Its vectors are compared with those of another implementation, where the catalogue has some; texts alone with the
    same texts together and in another order; every length alone with itself in a batch; and one number of threads with
    another. All but the first must agree to the bit. The exit code is 1 where something is wrong.

    An index is read through: the checksums of its files, the fingerprint of its model, and its canary texts embedded
    again. What does not agree is an error.

    \b
    Examples:
      weft verify
      weft verify all-MiniLM-L6-v2 --compute int8
      weft verify ./my-model --golden all-MiniLM-L6-v2 --json
      weft verify notes.index
      weft verify notes.index --model ./where-the-model-is-now
    """
    from weft.embed.index.files import HEADER
    from weft.embed.verification import verify
    from weft.errors import NotFoundError

    if (Path(model) / HEADER).is_file():
        for name in ("compute", "golden"):
            if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
                raise click.UsageError(f"--{name} is for a model; an index is verified as it was made, with its own")
        return _verify_index(Path(model), threads, as_json, asked)
    if model.endswith(".index") and not Path(model).exists():
        raise NotFoundError(f"[verify] {model} is not there; `weft index build` makes an index")
    if asked["now"] is not None:
        raise click.UsageError(f"--model is for an index, and {model} is none; name the model itself")
    if asked["base_url"] is not None:
        raise click.UsageError("--base-url is for an index whose model a server has; a server's model is not tried out")
    found = verify(model, compute=compute, threads=threads, golden=golden)
    if as_json:
        screen.print_json(
            {"model": model, "compute": compute, "passed": found.passed, "checks": list(map(asdict, found.checks))}
        )
    else:
        rows = [(check.name, WORDS[check.passed], check.detail) for check in found.checks]
        screen.table(("tried", "result", "what came out"), rows)
    if not found.passed:
        raise click.exceptions.Exit(1)


def _verify_index(path: Path, threads: int | None, as_json: bool, asked: dict[str, Any]) -> None:
    from weft.embed.pipeline.indexing import open_searchable

    server = options.server_of(asked)
    about = open_searchable(path, asked["now"], threads=threads, server=server, verify=True).info
    told = {name: about[name] for name in ("count", "canaries", "fingerprint")}
    if as_json:
        screen.print_json({"index": str(path), "passed": True, **told})
    else:
        note = "checksums right; {canaries} canary texts have the vectors they had, by {fingerprint}"
        click.echo(f"{screen.many(told['count'], 'row')}, {note.format(**told)}")
