"""weft show: how weft reads a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from weft.cli import screen

if TYPE_CHECKING:
    from weft.cli.outline import Outline

TEMPLATE_LINES = 20


@click.command()
@click.argument("model")
@click.option("--weights", is_flag=True, help="Print only the parameters that the model's program uses.")
@click.option("--program", is_flag=True, help="Print only the planned program of one step.")
@click.option("--template", is_flag=True, help="Print only the chat template, in full.")
@click.option("--config", "config", is_flag=True, help="Print only the model's description, as weft.json has it.")
@click.option("--pooling", help="Pooling of an encoder whose files do not state it: mean, first, last or max.")
def command(model: str, weights: bool, program: bool, template: bool, config: bool, pooling: str | None) -> None:
    """Show how weft reads a model, without reading its weights.

    Prints its config, its size, how it turns texts into vectors (embedders) or conversations into prompts (generators),
    and the sampling settings that a chat uses by default. A description (--config) is the whole model in JSON: saved as
    weft.json beside the weights, it is what weft builds the model from, and it can be changed.

    \b
    Examples:
      weft show all-MiniLM-L6-v2
      weft show smollm2-135m-instruct --weights
      weft show ./model.gguf --program | less
      weft show ./folder --config > ./folder/weft.json
    """
    if weights + program + template + config > 1:
        raise click.UsageError("--weights, --program, --template and --config cannot be combined; give one")
    if config:
        _print_description(model)
        return
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


def _print_description(model: str) -> None:
    from weft.describe import description_of
    from weft.runtime import open_checkpoint
    from weft.weights.sources import locate

    checkpoint = open_checkpoint(locate(model).path)
    words = description_of(checkpoint)
    screen.print_json(words.as_json())
    if checkpoint.format == "gguf":
        screen.note("The names are those of the same model as a folder: weft.json is read beside safetensors files.")


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
        screen.note(f"{len(unused)} tensors in the file are not used: {screen.cut(', '.join(unused), 200)}")


def _print_summary(outline: Outline) -> None:
    info, checkpoint = outline.info, outline.checkpoint
    used = [w for w in outline.program.weights if w.name in checkpoint.tensors]
    views = [checkpoint.tensors[w.name].view for w in used]
    parameters, size = sum(view.size for view in views), sum(view.nbytes for view in views)
    rows = [
        ("model", outline.located.spec),
        ("from", outline.located.source),
        ("path", checkpoint.path),
        ("kind", f"text {'reranker' if outline.method else 'embedder' if outline.recipe else 'generator'}"),
        ("model type", checkpoint.model_type),
        ("parameters", f"{screen.number(parameters)} in {len(used)} tensors, {screen.size(size)}"),
        ("stored as", ", ".join(sorted({str(w.dtype) for w in used}))),
        ("computed in", f"{info['compute']}, {info['level']} kernels"),
    ]
    if outline.sees:
        tower = checkpoint.projector.name if checkpoint.projector else "its own tower"
        rows.append(("pictures", f"are read, by {tower}"))
    if outline.method:
        stated = {name: info[name] for name in ("label", "activation", "instruction") if name in info}
        rows += [("scores by", outline.method), *stated.items()]
    elif outline.recipe is None:
        state = f"{info['kv_dtype']}, room for {screen.number(info['kv_tokens'])} tokens: {info['kv_reason']}"
        context = f"{screen.number(info['context'])} tokens: {info['context_reason']} (--context changes it)"
        rows += [("context", context), ("KV cache", state)]
        rows += [("experts", _experts(info))] if "expert_bytes" in info else []
        rows += [("end tokens", ", ".join(map(str, info["eos_ids"])) or "none"), ("sampling", _sampling(outline))]
        rows += [("tool calls", _tool_format(outline))] if outline.chat_template else []
    screen.facts(rows)
    click.echo()
    config = asdict(outline.config)
    screen.facts(config.get("description", config).items(), title="Config")
    click.echo()
    if outline.recipe:
        _print_recipe(outline)
    elif not outline.method:
        _print_template(outline.chat_template)


def _experts(info: Mapping[str, Any]) -> str:
    stay, total = screen.size(info["expert_bytes"]), screen.size(info["expert_total_bytes"])
    return f"{stay} of {total} stay in memory: {info['expert_reason']} (--expert-memory changes it)"


def _tool_format(outline: Outline) -> str:
    from weft.text.calls.formats import formats_of

    found = formats_of(outline.chat_template or "").tools
    return f"{found}, by the chat template" if found else "generic: the chat template has no format that weft reads"


def _sampling(outline: Outline) -> str:
    """The settings of a chat that sets none, and where they come from."""
    from weft.generate.choice.defaults import model_defaults

    defaults = model_defaults(outline.checkpoint.generation, outline.located.entry)
    return f"{defaults}: the defaults of chats"


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
        ("stated by", recipe.source),
    ]
    screen.facts(rows, title="Recipe")


def _print_template(template: str | None) -> None:
    if template is None:
        screen.facts([("chat template", "none: `weft generate` works, `weft chat` does not")])
        return
    lines = template.splitlines()
    screen.facts([("", "\n".join(lines[:TEMPLATE_LINES]))], title="Chat template")
    if len(lines) > TEMPLATE_LINES:
        screen.note(f"… {len(lines) - TEMPLATE_LINES} more lines; --template prints all")
