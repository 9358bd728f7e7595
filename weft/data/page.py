"""Statistics as one HTML page that needs no other file and no network."""

from __future__ import annotations

import os
from collections.abc import Iterable
from html import escape

from weft import __version__
from weft.data.statistics import Lengths, Statistics
from weft.weights.files import replacing

SHOWN_LABELS = 40
WIDTH, HEIGHT = 600, 120
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1f2430; --soft: #6b7280; --paper: #fff; --box: #f5f6f8; --bar: #3b6fd4; }}
@media (prefers-color-scheme: dark) {{
 :root {{ --ink: #e6e8ee; --soft: #9aa3b2; --paper: #14171d; --box: #1d2129; --bar: #7aa2f7; }}
}}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
 max-width: 900px; padding: 24px 20px 60px; }}
h1 {{ font-size: 22px; margin: 0 0 4px; overflow-wrap: anywhere; }} h2 {{ font-size: 16px; margin: 32px 0 8px; }}
.about {{ color: var(--soft); margin: 0 0 20px; overflow-wrap: anywhere; }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 10px; }}
.tile {{ background: var(--box); border-radius: 8px; padding: 10px 12px; }}
.tile b {{ display: block; font-size: 19px; font-variant-numeric: tabular-nums; }} .tile span {{ color: var(--soft); }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }}
td, th {{ text-align: left; padding: 3px 24px 3px 0; vertical-align: top; overflow-wrap: anywhere; }}
th {{ color: var(--soft); font-weight: 500; }}
svg {{ width: 100%; height: auto; }} rect {{ fill: var(--bar); }} text {{ fill: var(--soft); font-size: 11px; }}
meter {{ width: 100%; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p class="about">SHA-256 {digest} · weft {version}</p>
<div class="tiles">{tiles}</div>
{lengths}
<h2>Fields</h2>
<table><tr><th>field</th><th>rows</th><th>types</th></tr>{fields}</table>
{labels}
</body>
</html>
"""


def write_page(found: Statistics, path: str | os.PathLike[str]) -> None:
    """Write statistics as one HTML file."""
    with replacing(path) as out:
        out.write(page_of(found).encode())


def page_of(found: Statistics) -> str:
    """The page."""
    tiles = {"rows": found.rows, "repeated": found.repeated, "empty": found.empty, "labels": len(found.labels)}
    return PAGE.format(
        title=escape(found.name),
        digest=found.sha256,
        version=escape(__version__),
        tiles="".join(f'<div class="tile"><b>{count:,}</b><span>{name}</span></div>' for name, count in tiles.items()),
        lengths="".join(_lengths(name, lengths) for name, lengths in found.lengths.items()),
        fields=_rows(
            (name, f"{sum(kinds.values()):,}", ", ".join(f"{kind} {count:,}" for kind, count in kinds.items()))
            for name, kinds in found.fields.items()
        ),
        labels=_labels(found.labels),
    )


def _rows(rows: Iterable[Iterable[str]]) -> str:
    return "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)


def _lengths(name: str, lengths: Lengths) -> str:
    said = f"{lengths.least:,} to {lengths.most:,}, mean {lengths.mean:,.1f}, median {lengths.median:,}"
    more = f"90 % up to {lengths.p90:,}, 99 % up to {lengths.p99:,}, {lengths.total:,} in all"
    return f'<h2>{name.capitalize()} of a text</h2><p class="about">{said}; {more}</p>{_bars(lengths)}'


def _bars(lengths: Lengths) -> str:
    """A histogram; each bar says its numbers when pointed at."""
    most = max(count for _, count in lengths.bins)
    wide = WIDTH / len(lengths.bins)
    step = lengths.bins[1][0] if len(lengths.bins) > 1 else lengths.most + 1
    bars = [
        f'<rect x="{place * wide:.1f}" y="{HEIGHT - HEIGHT * count / most:.1f}" width="{max(1.0, wide - 2):.1f}" '
        f'height="{HEIGHT * count / most:.1f}"><title>{first:,} to {first + step - 1:,}: {count:,}</title></rect>'
        for place, (first, count) in enumerate(lengths.bins)
    ]
    ends = f'<text x="0" y="{HEIGHT + 14}">0</text>'
    ends += f'<text x="{WIDTH}" y="{HEIGHT + 14}" text-anchor="end">{lengths.most:,}</text>'
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 18}" role="img" aria-label="histogram">{"".join(bars)}{ends}</svg>'


def _labels(labels: dict[str, int]) -> str:
    if not labels:
        return ""
    most = max(labels.values())
    shown = list(labels.items())[:SHOWN_LABELS]
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td>{count:,}</td><td><meter max="{most}" value="{count}"></meter></td></tr>'
        for name, count in shown
    )
    left = len(labels) - len(shown)
    more = f'<p class="about">and {left:,} more labels</p>' if left else ""
    return f"<h2>Labels</h2><table><tr><th>label</th><th>rows</th><th></th></tr>{rows}</table>{more}"
