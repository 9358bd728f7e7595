"""loss.svg and report.html: all of a training on one page that needs no other file and no network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from weft.progress import duration
from weft.train.preference import flat_lessons
from weft.train.report import curve
from weft.weights.files import replacing

if TYPE_CHECKING:
    from weft.train.learner import Lesson
    from weft.train.run import Run

SHOWN_ROWS, SHOWN_TOKENS = 3, 400


class Trained(Protocol):
    """What a report reads of a training."""

    kind: str
    output: Path | None
    seconds: float
    base: Any
    learner: Any
    data: Any
    valid: Any
    run: Run


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1f2430; --soft: #6b7280; --paper: #fff; --box: #f5f6f8; --mark: #fde9c8; }}
@media (prefers-color-scheme: dark) {{
 :root {{ --ink: #e6e8ee; --soft: #9aa3b2; --paper: #14171d; --box: #1d2129; --mark: #5a4420; }}
}}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
 max-width: 900px; padding: 24px 20px 60px; }}
h1 {{ font-size: 22px; margin: 0 0 4px; }} h2 {{ font-size: 16px; margin: 32px 0 8px; }}
.about {{ color: var(--soft); margin: 0 0 20px; overflow-wrap: anywhere; }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 10px; }}
.tile {{ background: var(--box); border-radius: 8px; padding: 10px 12px; }}
.tile b {{ display: block; font-size: 19px; font-variant-numeric: tabular-nums; }} .tile span {{ color: var(--soft); }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
td, th {{ text-align: left; padding: 3px 24px 3px 0; vertical-align: top; overflow-wrap: anywhere; }}
th {{ color: var(--soft); font-weight: 500; }}
.text {{ background: var(--box); border-radius: 8px; padding: 10px 12px; white-space: pre-wrap; overflow-wrap: anywhere;
 font: 13px/1.5 ui-monospace, monospace; margin: 0 0 10px; }}
.text mark {{ background: var(--mark); color: inherit; border-radius: 3px; }}
svg {{ width: 100%; height: auto; }}
.key span {{ margin-right: 16px; color: var(--soft); }} .key i {{ display: inline-block; width: 14px; height: 3px;
 border-radius: 2px; margin-right: 6px; vertical-align: middle; }}
{style}
</style>
</head>
<body>
<h1>{title}</h1>
<p class="about">{about}</p>
<div class="tiles">{tiles}</div>
<h2>Loss</h2>
<p class="key curve"><span><i style="background: var(--line)"></i>training, smoothed</span>{key}</p>
{chart}
<h2>Norm of the gradient</h2>
{norms}
{checks}
<h2>What was learnt</h2>
<table>{data}</table>
<p class="about">The beginning of the first rows; marked tokens count in the loss.</p>
{rows}
<h2>Options</h2>
<table>{options}</table>
<h2>Use it</h2>
<div class="text">{use}</div>
</body>
</html>
"""


def write_report(folder: Path, training: Trained) -> None:
    """Write loss.svg and report.html into the folder of a training that has ended."""
    losses, valid = curves(training)
    for name, content in (("loss.svg", curve.svg(losses, valid)), ("report.html", page(training))):
        with replacing(folder / name) as out:
            out.write(content.encode())


def curves(training: Trained) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """The training losses and the validation losses, by step."""
    history = training.run.history
    losses = [(float(step.number), step.loss) for step in history]
    return losses, [(float(step.number), step.valid) for step in history if step.valid is not None]


def page(training: Trained) -> str:
    """The whole report as HTML."""
    run, (losses, valid) = training.run, curves(training)
    kind = {"lora": "LoRA", "dpo": "Preference training"}[training.kind]
    checked = [step for step in run.history if step.valid is not None]
    table = _table(("step", "loss", "rate"), ((f"{s.number}", f"{s.valid:.4f}", f"{s.rate:.3g}") for s in checked))
    base, count = escape(training.base.name), len(training.learner.changes)
    return PAGE.format(
        title=f"{kind}: {escape(Path(training.base.name).name)}",
        about=f"{count} matrices, {training.learner.parameters:,} numbers, on {base}",
        style=curve.STYLE,
        tiles="".join(f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for name, value in _tiles(training)),
        key='<span><i style="background: var(--other)"></i>validation</span>' if valid else "",
        chart=curve.svg(losses, valid, style=False),
        norms=curve.svg([(float(step.number), step.norm) for step in run.history], title="norm", style=False),
        checks=f"<h2>Validation</h2><table>{table}</table>" if checked else "",
        data=_facts(_data(training)),
        rows="".join(f'<div class="text">{_row(training, lesson)}</div>' for lesson in _first(training)),
        options=_facts((name, str(value)) for name, value in asdict(run.options).items()),
        use="\n".join(uses(training)).translate({ord("<"): "&lt;", ord("&"): "&amp;"}),
    )


def uses(training: Trained) -> list[str]:
    """Commands that use the adapter."""
    base, adapter = training.base.name, training.output
    return [
        f"weft chat {base} --adapter {adapter}",
        f"weft merge {base} {adapter} -o merged.gguf --type q8_0 --max-loss 0.01",
    ]


def _tiles(training: Trained) -> Iterable[tuple[str, str]]:
    run = training.run
    few = [step.loss for step in run.history[-10:]]
    yield "loss, last steps", f"{sum(few) / len(few):.4f}"
    if run.best is not None:
        yield f"best validation, step {run.best[0].number}", f"{run.best[0].valid:.4f}"
    if run.history[-1].accuracy is not None:
        right = [step.accuracy or 0.0 for step in run.history[-10:]]
        yield "chosen preferred", f"{100 * sum(right) / len(right):.0f} %"
    yield "steps" + (", stopped early" if run.stopped_early else ""), f"{run.done:,}"
    yield "tokens", f"{sum(step.tokens for step in run.history):,}"
    if training.seconds:
        yield "time", duration(training.seconds)


def _data(training: Trained) -> Iterable[tuple[str, str]]:
    data, valid = training.data, training.valid
    yield "rows", f"{data.rows:,}"
    yield "tokens", f"{data.tokens:,}"
    yield "learnt tokens", f"{data.targets:,} ({100 * data.targets / data.tokens:.0f} %)"
    for name in ("cut", "split", "dropped"):
        if getattr(data, name, 0):
            yield f"rows {name}", f"{getattr(data, name):,}"
    if valid is not None:
        yield "validation", f"{valid.rows:,} rows, {valid.targets:,} learnt tokens"


def _first(training: Trained) -> list[Lesson]:
    return flat_lessons(training.data.lessons[:SHOWN_ROWS])


def _row(training: Trained, lesson: Lesson) -> str:
    """The row's text, learnt tokens marked; runs of tokens are decoded together, so that characters stay whole."""
    learnt = [False, *(lesson.shares[1:SHOWN_TOKENS] != 0).tolist()]
    parts, start = [], 0
    for at in range(1, len(learnt) + 1):
        if at == len(learnt) or learnt[at] != learnt[start]:
            text = escape(training.base.tokenizer.decode(lesson.ids[start:at], skip_special=False))
            parts.append(f"<mark>{text}</mark>" if learnt[start] else text)
            start = at
    return "".join(parts) + (" …" if len(lesson.ids) > SHOWN_TOKENS else "")


def _facts(rows: Iterable[tuple[str, str]]) -> str:
    return "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    return f"<tr>{head}</tr>" + "".join(f"<tr>{''.join(f'<td>{escape(v)}</td>' for v in row)}</tr>" for row in rows)
