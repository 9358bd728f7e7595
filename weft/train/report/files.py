"""loss.svg and report.html: all of a training on one page that needs no other file and no network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any, Protocol

from weft.progress import duration
from weft.train.report import curve
from weft.weights.files import replacing

SHOWN_ROWS, SHOWN_TOKENS = 3, 400


class Trained(Protocol):
    """What a report reads of a training."""

    output: Path | None
    seconds: float
    base: Any
    learner: Any
    run: Any

    @property
    def title(self) -> str: ...

    def facts(self) -> Iterable[tuple[str, str]]: ...

    def shown_rows(self, rows: int, tokens: int) -> Iterable[list[tuple[str, bool]]]: ...

    def uses(self) -> list[str]: ...


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
<p class="about">The beginning of the first rows; what is marked counts in the loss.</p>
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
    checked = [step for step in run.history if step.valid is not None]
    table = _checks(checked, run.measure_name)
    base, count = escape(training.base.name), len(training.learner.changes)
    trained = f"{count} matrices, {training.learner.parameters:,} numbers" if count else "all weights"
    return PAGE.format(
        title=f"{training.title}: {escape(Path(training.base.name).name)}",
        about=f"{trained}, on {base}",
        style=curve.STYLE,
        tiles="".join(f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for name, value in _tiles(training)),
        key='<span><i style="background: var(--other)"></i>validation</span>' if valid else "",
        chart=curve.svg(losses, valid, style=False),
        norms=curve.svg([(float(step.number), step.norm) for step in run.history], title="norm", style=False),
        checks=f"<h2>Validation</h2><table>{table}</table>" if checked else "",
        data=_facts(training.facts()),
        rows="".join(
            f'<div class="text">{_marked(pieces)}</div>' for pieces in training.shown_rows(SHOWN_ROWS, SHOWN_TOKENS)
        ),
        options=_facts((name, str(value)) for name, value in asdict(run.options).items()),
        use="\n".join(training.uses()).translate({ord("<"): "&lt;", ord("&"): "&amp;"}),
    )


def _tiles(training: Trained) -> Iterable[tuple[str, str]]:
    run = training.run
    few = [step.loss for step in run.history[-10:]]
    yield "loss, last steps", f"{sum(few) / len(few):.4f}"
    if run.before is not None:
        yield f"{run.measure_name} before", f"{run.before['score']:.4f}"
    if run.best is not None and run.measure_name:
        yield f"best {run.measure_name}, step {run.best[0].number}", f"{run.best[0].score:.4f}"
    elif run.best is not None:
        yield f"best validation, step {run.best[0].number}", f"{run.best[0].valid:.4f}"
    if run.history[-1].accuracy is not None:
        right = [step.accuracy or 0.0 for step in run.history[-10:]]
        yield "chosen preferred", f"{100 * sum(right) / len(right):.0f} %"
    yield "steps" + (", stopped early" if run.stopped_early else ""), f"{run.done:,}"
    yield "tokens", f"{sum(step.tokens for step in run.history):,}"
    if training.seconds:
        yield "time", duration(training.seconds)


def _marked(pieces: Iterable[tuple[str, bool]]) -> str:
    return "".join(f"<mark>{escape(text)}</mark>" if learnt else escape(text) for text, learnt in pieces)


def _checks(steps: Iterable[Any], name: str) -> str:
    """The table of validations, with the score of each where there is one."""
    columns = ("step", "loss", *([name] if name else []), "rate")
    rows = ((f"{s.number}", f"{s.valid:.4f}", *([f"{s.score:.4f}"] if name else []), f"{s.rate:.3g}") for s in steps)
    return _table(columns, rows)


def _facts(rows: Iterable[tuple[str, str]]) -> str:
    return "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    return f"<tr>{head}</tr>" + "".join(f"<tr>{''.join(f'<td>{escape(v)}</td>' for v in row)}</tr>" for row in rows)
