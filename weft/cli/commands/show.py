"""weft show: what weft makes of a model."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from weft.cli import screen

if TYPE_CHECKING:
    from weft.cli.outline import Outline

TEMPLATE_LINES = 20


@click.command()
@click.argument("model")
@click.option("--weights", is_flag=True, help="Only the parameters, as the model's trace uses them.")
@click.option("--program", is_flag=True, help="Only the planned program of one step.")
@click.option("--template", is_flag=True, help="Only the chat template, whole.")
@click.option("--pooling", help="How an encoder that does not say so pools: mean, first, last or max.")
def command(model: str, weights: bool, program: bool, template: bool, pooling: str | None) -> None:
    """Show what weft makes of a model.

    That is its config, its parameters, and how texts become vectors (embedders) or conversations become prompts
    (generators). No weight is read.

    \b
    Examples:
      weft show all-MiniLM-L6-v2
      weft show smollm2-135m-instruct --weights
      weft show ./model.gguf --program | less
    """
    if weights + program + template > 1:
        raise click.UsageError("--weights, --program and --template print one thing each; give one")
    from weft.cli.outline import open_outline

    outline = open_outline(model, pooling=pooling)
    if weights:
        _print_weights(outline)
    elif program:
        from weft.graph.text import to_text

        click.echo(to_text(outline.program), nl=False)
    elif template:
        click.echo(outline.chat_template or "", nl=False)
    else:
        _print_summary(outline)


def _print_weights(outline: Outline) -> None:
    stored = outline.checkpoint.tensors
    weights = outline.program.weights
    rows = [
        (w.name, w.dtype, screen.shape(w.shape), stored[w.name].view.nbytes if w.name in stored else "computed")
        for w in weights
    ]
    screen.table(("parameter", "type", "shape", "bytes"), rows, right=("bytes",))
    unused = sorted(stored.keys() - {w.name for w in weights})
    if unused:
        screen.note(f"{len(unused)} tensors of the file are not used: {screen.cut(', '.join(unused), 200)}")


def _print_summary(outline: Outline) -> None:
    info, checkpoint = outline.info, outline.checkpoint
    used = [w for w in outline.program.weights if w.name in checkpoint.tensors]
    parameters = sum(checkpoint.tensors[w.name].view.size for w in used)
    rows = [
        ("model", outline.located.spec),
        ("from", outline.located.source),
        ("path", checkpoint.path),
        ("kind", f"text {'reranker' if outline.method else 'embedder' if outline.recipe else 'generator'}"),
        ("model type", checkpoint.model_type),
        ("parameters", f"{screen.number(parameters)} in {len(used)} tensors, {screen.size(checkpoint.size_bytes)}"),
        ("stored as", ", ".join(sorted({str(w.dtype) for w in used}))),
        ("computed in", f"{info['compute']}, {info['level']} kernels"),
    ]
    if outline.method:
        told = {name: info[name] for name in ("label", "activation", "instruction") if name in info}
        rows += [("scores by", outline.method), *told.items()]
    elif outline.recipe is None:
        state = f"{info['kv_dtype']}, room for {screen.number(info['kv_tokens'])} tokens: {info['kv_reason']}"
        rows += [("context", f"{info['context']} tokens"), ("key/value state", state)]
        rows += [("ends at ids", ", ".join(map(str, info["eos_ids"])) or "none")]
    screen.facts(rows)
    click.echo()
    screen.facts(asdict(outline.config).items(), title="Config")
    click.echo()
    if outline.recipe:
        _print_recipe(outline)
    elif not outline.method:
        _print_template(outline.chat_template)


def _print_recipe(outline: Outline) -> None:
    recipe = outline.recipe
    assert recipe is not None
    dense = [f"{layer.inputs} to {layer.outputs}, {layer.activation}" for layer in recipe.dense]
    rows = [
        ("pooling", recipe.pooling),
        ("dense layers", "; ".join(dense) or "none"),
        ("normalise", "yes" if recipe.normalise else "no"),
        ("longest text", f"{recipe.max_tokens} tokens"),
        ("similarity", recipe.similarity),
        *((f"prompt {name}", repr(text)) for name, text in recipe.prompts.items()),
        ("said by", recipe.source),
    ]
    screen.facts(rows, title="Recipe")


def _print_template(template: str | None) -> None:
    if template is None:
        screen.facts([("chat template", "none: `weft generate` works, `weft chat` does not")])
        return
    lines = template.splitlines()
    screen.facts([("", "\n".join(lines[:TEMPLATE_LINES]))], title="Chat template")
    if len(lines) > TEMPLATE_LINES:
        screen.note(f"… {len(lines) - TEMPLATE_LINES} more lines; --template shows all")
