"""A comparison as one page of HTML that needs no other file and no network: verdict, map, histograms, worst items."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from weft.transport.drift.comparing import Comparison

WIDTH, HEIGHT, PAD = 420, 300, 34
BARS = 24
SHOWN_POINTS = 1500  # of each set, on the map

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1f2430; --soft: #6b7280; --paper: #fff; --box: #f5f6f8; --grid: #e4e6eb;
 --one: #2563eb; --two: #d9480f; }}
@media (prefers-color-scheme: dark) {{
 :root {{ --ink: #e6e8ee; --soft: #9aa3b2; --paper: #14171d; --box: #1d2129; --grid: #2b303b; --one: #7aa2f7;
  --two: #ff9e64; }}
}}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
 max-width: 900px; padding: 24px 20px 60px; }}
h1 {{ font-size: 22px; margin: 0 0 4px; }} h2 {{ font-size: 16px; margin: 28px 0 8px; }}
.about {{ color: var(--soft); margin: 0 0 16px; overflow-wrap: anywhere; }}
.verdict {{ background: var(--box); border-left: 4px solid var(--{colour}); padding: 10px 14px; border-radius: 4px; }}
.pictures {{ display: flex; flex-wrap: wrap; gap: 16px; }}
figure {{ margin: 0; }} figcaption {{ color: var(--soft); font-size: 13px; max-width: {width}px; }}
svg {{ background: var(--box); border-radius: 4px; max-width: 100%; }}
svg text {{ font: 11px system-ui, sans-serif; fill: var(--soft); }}
.one {{ fill: var(--one); }} .two {{ fill: var(--two); }} .dot {{ fill-opacity: .55; }}
.axis {{ stroke: var(--grid); }} .mark {{ stroke: var(--two); stroke-width: 2; }}
table {{ border-collapse: collapse; width: 100%; font-size: 14px; }}
td, th {{ text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--grid); overflow-wrap: anywhere; }}
td.n, th.n {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p class="about">{about}</p>
<p class="verdict">{verdict}</p>
<div class="pictures">
<figure>{map}<figcaption>{map_says}</figcaption></figure>
<figure>{null}<figcaption>{null_says}</figcaption></figure>
<figure>{moves}<figcaption>{moves_says}</figcaption></figure>
</div>
<h2>Numbers</h2>
<table>{numbers}</table>
<h2>Items that moved most</h2>
<table><tr><th>item</th><th class="n">distance</th><th>{target}</th><th></th></tr>{worst}</table>
</body>
</html>
"""


def page(found: Comparison, names: tuple[str, str], texts: Sequence[str] | None = None) -> str:
    """The page; `names` are those of both sets, `texts` those of paired items by their row, if there are any."""
    a, b = names
    summary = found.summary
    by_id = {item.id: text for item, text in zip(found.items, texts, strict=False)} if texts else {}
    verdict = said(found)
    sampled = (
        "" if found.sampled == found.rows else f", of which {found.sampled[0]:,} and {found.sampled[1]:,} were used"
    )
    numbers = [
        ("p-value", f"{found.verdict.p:.4g} ({found.permutations} relabellings, drift from {found.level:g} down)"),
        ("effect", f"{found.verdict.effect:.1f} standard deviations of the relabellings"),
        ("divergence", f"{found.verdict.divergence:.5g}"),
        ("transport distance", f"{found.distance:.5g} ({found.metric}{'' if found.converged else ', not converged'})"),
        ("displacement", f"mean {summary['mean']:.4g}, median {summary['median']:.4g}, largest {summary['max']:.4g}"),
        ("outliers", f"{summary['outliers']:.0f} of {len(found.items):,} items, two deviations above the mean"),
    ]
    explained = 100 * sum(found.explained)
    return PAGE.format(
        title=escape(f"Drift: {a} and {b}"),
        about=escape(f"{found.rows[0]:,} and {found.rows[1]:,} vectors of {found.dimension} numbers{sampled}"),
        colour="two" if found.drifted else "one",
        width=WIDTH,
        verdict=escape(verdict),
        map=_map(found),
        map_says=f'<span style="color:var(--one)">●</span> {escape(a)} <span style="color:var(--two)">●</span> '
        f"{escape(b)}: two principal directions, {explained:.0f} % of the variance.",
        null=_histogram(found.verdict.null, found.verdict.divergence),
        null_says="Divergences of random relabellings; the line is the real one.",
        moves=_histogram(np.array([item.distance for item in found.items]), None),
        moves_says="How far items moved.",
        numbers="".join(f"<tr><td>{escape(k)}</td><td>{escape(v)}</td></tr>" for k, v in numbers),
        target="" if found.paired else "nearest in the second set",
        worst="".join(
            f'<tr><td>{escape(by_id.get(item.id, item.id))}</td><td class="n">{item.distance:.4g}</td>'
            f"<td>{'' if found.paired else escape(item.target)}</td><td>{'outlier' if item.outlier else ''}</td></tr>"
            for item in found.worst(20)
        ),
    )


def said(found: Comparison) -> str:
    """The verdict as a sentence."""
    p, effect = found.verdict.p, found.verdict.effect
    if found.drifted:
        return (
            f"Drift: of {found.permutations} random relabellings "
            f"{round(p * (1 + found.permutations)) - 1} lie as far apart (p = {p:.4g}, effect {effect:.1f})."
        )
    share = f"{100 * p:.3g} % of relabellings"
    return f"No drift shown: chance alone gives such a divergence in {share} (effect {effect:.1f})."


def _map(found: Comparison) -> str:
    n = found.sampled[0]
    low, high = found.points.min(0), found.points.max(0)
    span = np.maximum(high - low, 1e-30)
    dots = []
    for name, part in (("one", found.points[:n]), ("two", found.points[n:])):
        for x, y in ((part - low) / span)[:SHOWN_POINTS]:
            at = f'cx="{PAD / 2 + x * (WIDTH - PAD):.1f}" cy="{HEIGHT - PAD / 2 - y * (HEIGHT - PAD):.1f}"'
            dots.append(f'<circle class="{name} dot" {at} r="2.4"/>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="map">{"".join(dots)}</svg>'


def _histogram(values: np.ndarray, mark: float | None) -> str:
    low, high = float(values.min()), float(values.max())
    if mark is not None:
        low, high = min(low, mark), max(high, mark)
    if high <= low:
        high = low + (abs(low) or 1.0)
    counts, _ = np.histogram(values, BARS, (low, high))
    width, top = (WIDTH - PAD) / BARS, HEIGHT - PAD
    drawn = []
    for number, count in enumerate(counts):
        tall = (top - 12) * count / max(1, counts.max())
        at = f'x="{PAD / 2 + number * width:.1f}" y="{top - tall:.1f}"'
        drawn.append(f'<rect class="one" {at} width="{width - 1:.1f}" height="{tall:.1f}"/>')
    drawn.append(f'<line class="axis" x1="{PAD / 2}" x2="{WIDTH - PAD / 2}" y1="{top}" y2="{top}"/>')
    if mark is not None:
        x = PAD / 2 + (mark - low) / (high - low) * (WIDTH - PAD)
        drawn.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="8" y2="{top}"/>')
    ends = ((PAD / 2, "start", low), (WIDTH - PAD / 2, "end", high))
    drawn += [f'<text x="{x}" y="{HEIGHT - 12}" text-anchor="{anchor}">{value:.3g}</text>' for x, anchor, value in ends]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="histogram">{"".join(drawn)}</svg>'
    )
