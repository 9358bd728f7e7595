"""Losses as a picture (SVG) and as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 860, 320, 56, 34, 16, 16
SMOOTHEST = 0.95  # of what a point of the line through noisy losses has of the point before
POINTS = 20  # of a run that are seen apart: longer ones are smoothed more
BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # the bits of a cell's dots, by row and column

STYLE = """
.curve { --ink: #1f2430; --soft: #6b7280; --grid: #e4e6eb; --line: #2563eb; --faint: #9dbaf5; --other: #d9480f; }
@media (prefers-color-scheme: dark) {
 .curve { --ink: #e6e8ee; --soft: #9aa3b2; --grid: #2b303b; --line: #7aa2f7; --faint: #33466f; --other: #ff9e64; }
}
.curve text { font: 12px system-ui, sans-serif; fill: var(--soft); }
.curve .grid { stroke: var(--grid); stroke-width: 1; }
.curve .raw { fill: none; stroke: var(--faint); stroke-width: 1; }
.curve .smooth { fill: none; stroke: var(--line); stroke-width: 2; stroke-linejoin: round; }
.curve .valid { fill: none; stroke: var(--other); stroke-width: 2; stroke-linejoin: round; }
.curve .dot { fill: var(--other); }
""".strip()


def smoothed(points: Points) -> list[tuple[float, float]]:
    """An exponential mean of the values, without its bias towards the first."""
    kept = min(SMOOTHEST, 1 - 1 / (1 + len(points) / POINTS))
    found, mean, weight = [], 0.0, 0.0
    for x, y in points:
        mean = kept * mean + (1 - kept) * y
        weight = kept * weight + (1 - kept)
        found.append((x, mean / weight))
    return found


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between both."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def svg(losses: Points, valid: Points = (), *, title: str = "loss", style: bool = True) -> str:
    """The losses of all steps, a line through them, and the validation losses."""
    line = smoothed(losses)
    values = [y for points in (line, valid, losses) for _, y in points]
    room = 0.04 * (max(values) - min(values)) or 0.5
    low, high = min(values) - room, max(values) + room
    first, last = losses[0][0], max(losses[-1][0], losses[0][0] + 1)

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - first) / (last - first) * (WIDTH - LEFT - RIGHT)
        return round(across, 1), round(TOP + (high - y) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    parts += [f"<title>{title}</title>", f"<style>{STYLE}</style>" if style else ""]
    for value in ticks(low, high):
        y = place(first, value)[1]
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{value:.4g}</text>')
    for value in ticks(first, last, 8):
        if value == int(value):
            x = place(value, low)[0]
            parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{int(value)}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 2}" text-anchor="end">step</text>')
    for kind, points in (("raw", losses), ("smooth", line), ("valid", valid)):
        if len(points) > 1:
            drawn = " ".join(f"{x},{y}" for x, y in (place(*point) for point in points))
            parts.append(f'<polyline class="{kind}" points="{drawn}"/>')
    for step, value in valid or (losses if len(losses) == 1 else ()):
        x, y = place(step, value)
        parts.append(f'<circle class="dot" cx="{x}" cy="{y}" r="4"><title>step {step:g}: {value:.4f}</title></circle>')
    return "\n".join([*filter(None, parts), "</svg>"])


def text(losses: Points, *, width: int = 60, height: int = 8) -> list[str]:
    """Lines of dots for a terminal, the highest and lowest loss before them."""
    line = smoothed(losses)
    low, high = min(y for _, y in line), max(y for _, y in line)
    cells = [[0] * width for _ in range(height)]
    columns, rows = 2 * width, 4 * height
    for column in range(columns):
        place = column / (columns - 1) * (len(line) - 1)
        before, part = int(place), place - int(place)
        after = min(before + 1, len(line) - 1)
        value = line[before][1] * (1 - part) + line[after][1] * part
        row = 0 if high <= low else round((high - value) / (high - low) * (rows - 1))
        cells[row // 4][column // 2] |= BRAILLE[row % 4][column % 2]
    labels = {0: f"{high:.4f}", height - 1: f"{low:.4f}"}
    return [f"{labels.get(n, ''):>9} {''.join(chr(0x2800 + cell) for cell in row)}" for n, row in enumerate(cells)]
