"""Size against loss: what several files of a model cost and lose, in a terminal and as a picture (SVG)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft.frozen import frozen
from weft.train.report.curve import BOTTOM, HEIGHT, LEFT, RIGHT, STYLE, TOP, WIDTH, ticks

MEASURES = {"perplexity": "perplexity", "mean": "divergence", "lost": "1 - cosine"}  # by field of a line
NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@frozen
class Point:
    name: str
    megabytes: float
    loss: float


def points_of(lines: Iterable[str | Mapping[str, Any]], where: str = "lines") -> tuple[str, list[Point]]:
    """What is measured, and a point for each line that `weft eval --json` printed. All must measure the same."""
    found: list[Point] = []
    measures: set[str] = set()
    for number, line in enumerate(lines, 1):
        if isinstance(line, str) and not line.strip():
            continue
        row = _row(line, f"{where}, line {number}")
        name = str(row.get("b", row.get("model", f"line {number}")))
        size = row.get("bytes_b", row.get("bytes"))
        measure = next((field for field in MEASURES if isinstance(row.get(field), (int, float))), None)
        if measure is None or not isinstance(size, (int, float)):
            what = "needs a size and one of perplexity, mean or lost"
            raise InputError("eval", f"{where}, line {number} {what}", advice="give lines of `weft eval … --json`")
        measures.add(measure)
        found.append(Point(Path(name).name, size / 1e6, float(row[measure])))
    if not found:
        raise InputError("eval", f"{where} has no lines", advice="give lines of `weft eval … --json`")
    if len(measures) > 1:
        what = f"lines measure different things: {', '.join(sorted(measures))}"
        raise InputError("eval", what, advice="plot each measure by itself")
    return MEASURES[measures.pop()], found


def _row(line: str | Mapping[str, Any], where: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line) if isinstance(line, str) else line
    except ValueError as error:
        raise InputError("eval", f"{where} is not JSON: {error}") from None
    if not isinstance(row, Mapping):
        raise InputError("eval", f"{where} is not an object")
    return row


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    room = 0.06 * (max(values) - min(values)) or 0.05 * abs(values[0]) or 0.5
    return min(values) - room, max(values) + room


def text(measure: str, points: Sequence[Point], *, width: int = 60, height: int = 14) -> list[str]:
    """Lines for a terminal: a letter for each model, and a legend."""
    (left, right), (low, high) = _bounds([p.megabytes for p in points]), _bounds([p.loss for p in points])
    cells = [[" "] * width for _ in range(height)]
    for name, point in zip(NAMES, points):
        column = min(width - 1, int((point.megabytes - left) / (right - left) * width))
        row = min(height - 1, int((high - point.loss) / (high - low) * height))
        cells[row][column] = name if cells[row][column] == " " else "*"
    labels = {0: f"{high:.4g}", height - 1: f"{low:.4g}"}
    lines = [f"{labels.get(n, ''):>9} │{''.join(row).rstrip()}" for n, row in enumerate(cells)]
    lines += [f"{'':>9} └{'─' * width}", f"{'':>11}{left:.4g} MB{f'{right:.4g} MB':>{width - len(f'{left:.4g} MB')}}"]
    legend = [f"{name}  {p.name}  {p.megabytes:.1f} MB, {measure} {p.loss:.5g}" for name, p in zip(NAMES, points)]
    return [f"{'':>11}{measure} by size", *lines, *legend]


def svg(measure: str, points: Sequence[Point]) -> str:
    """The same as a picture that needs no other file."""
    (left, right), (low, high) = _bounds([p.megabytes for p in points]), _bounds([p.loss for p in points])

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - left) / (right - left) * (WIDTH - LEFT - RIGHT)
        return round(across, 1), round(TOP + (high - y) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    parts += [f"<title>{escape(measure)} by size</title>", f"<style>{STYLE}</style>"]
    for value in ticks(low, high):
        y = place(left, value)[1]
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{value:.4g}</text>')
    for value in ticks(left, right, 8):
        x = place(value, low)[0]
        parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:.4g}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 2}" text-anchor="end">MB</text>')
    for point in points:
        x, y = place(point.megabytes, point.loss)
        said = f"{point.name}: {point.megabytes:.1f} MB, {measure} {point.loss:.5g}"
        after = x < (WIDTH + LEFT) / 2
        parts.append(f'<circle class="dot" cx="{x}" cy="{y}" r="4"><title>{escape(said)}</title></circle>')
        anchor = "start" if after else "end"
        moved = round(x + (8 if after else -8), 1)
        parts.append(f'<text x="{moved}" y="{y - 6}" text-anchor="{anchor}">{escape(point.name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def best(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats in size and loss at once, from the smallest on."""
    found, least = [], math.inf
    for point in sorted(points, key=lambda p: (p.megabytes, p.loss)):
        if point.loss < least:
            found.append(point)
            least = point.loss
    return found
