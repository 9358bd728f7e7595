"""Results as a table, one JSON line, bars, a picture, and the figures of the README and docs/benchmarks.md."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from weft.bench.measure import Summary
from weft.frozen import frozen

BAR = 40  # characters of the longest bar
LESS_IS_BETTER = ("ms", "MB")


@frozen
class Row:
    """The result of one runner for one workload; `share` is the median as a fraction of the roof `roof`."""

    workload: str
    runner: str
    kind: str
    unit: str
    result: Summary
    share: float | None = None
    roof: str = ""
    agreement: str = ""

    @property
    def is_weft(self) -> bool:
        return self.runner.split()[0] == "weft"

    def times_as_good(self, other: Row) -> float:
        """2.0 if this is twice as fast, or takes half as much."""
        ratio = self.result.median / other.result.median
        return 1 / ratio if self.unit in LESS_IS_BETTER else ratio

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"workload": self.workload, "runner": self.runner, "unit": self.unit}
        found.update(self.result.as_json())
        if self.share is not None:
            found.update(share=round(self.share, 4), roof=self.roof)
        if self.agreement:
            found["agreement"] = self.agreement
        return found


COLUMNS = ("workload", "runner", "median", "range", "unit", "of roof", "weft is", "agrees")
RIGHT = ("median", "range", "of roof", "weft is", "agrees")


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells, without empty columns."""
    cells = [
        [
            row.workload,
            row.runner,
            number(row.result.median),
            f"{number(row.result.low)} to {number(row.result.high)}",
            row.unit,
            f"{100 * row.share:.0f} % of {row.roof}" if row.share is not None else "",
            versus(row, rows),
            row.agreement,
        ]
        for row in rows
    ]
    used = [i for i in range(len(COLUMNS)) if any(line[i] for line in cells)]
    return [COLUMNS[i] for i in used], [[line[i] for i in used] for line in cells]


def versus(row: Row, rows: Sequence[Row]) -> str:
    """In a peer's row: how many times as good weft is. In weft's row: the same for the best peer.

    Where weft has several kinds of arithmetic (f32, bf16), the same kinds are compared; a peer of a kind that weft
    lacks is compared with weft's last one.
    """
    others = [other for other in rows if other.workload == row.workload and other.is_weft != row.is_weft]
    same = [other for other in others if other.kind == row.kind or not (row.kind and row.is_weft)]
    if not row.is_weft:
        own = [other for other in others if other.kind == row.kind] or others
        return f"{own[-1].times_as_good(row):.2f}×" if own else ""
    best = max(same, key=lambda other: other.times_as_good(row), default=None)
    return f"{row.times_as_good(best):.2f}× the best" if best else ""


def number(value: float) -> str:
    """Three significant digits: 0.512, 12.3, 1,234."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def record(case: str, rows: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """The JSON line: results, with case, commit, processor, level and date."""
    from weft.backends.cpu import CpuBackend
    from weft.runtime.machine import cpu_name

    return {
        "case": case,
        "commit": commit(),
        "cpu": cpu_name(),
        "level": CpuBackend().level,
        "date": time.strftime("%Y-%m-%d"),
        **more,
        "rows": list(rows),
    }


def commit() -> str:
    """The checkout's commit, with a plus where files were changed since; "" for an installed package."""
    folder = Path(__file__).resolve().parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"], capture_output=True, text=True, cwd=folder
        )
    except OSError:
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def bars(rows: Sequence[Row]) -> list[str]:
    """A bar per row for a terminal, each workload scaled to its own longest."""
    lines = []
    widest = max(len(row.runner) for row in rows)
    for workload in dict.fromkeys(row.workload for row in rows):
        group = [row for row in rows if row.workload == workload]
        most = max(row.result.median for row in group)
        lines.append(f"{workload} ({group[0].unit}{', less is better' if group[0].unit in LESS_IS_BETTER else ''})")
        for row in group:
            bar = "█" * max(1, round(BAR * row.result.median / most))
            lines.append(f"  {row.runner:<{widest}} {bar} {number(row.result.median)}")
    return lines


def svg(rows: Sequence[Row], title: str) -> str:
    """The same bars as a picture, weft's darker, with a line over the range that was seen."""
    left, width, line = 230, 420, 18
    parts, y = [f'<text x="8" y="20" font-weight="bold">{escape(title)}</text>'], 44
    for workload in dict.fromkeys(row.workload for row in rows):
        group = [row for row in rows if row.workload == workload]
        scale = width / max(row.result.high for row in group)
        note = ", less is better" if group[0].unit in LESS_IS_BETTER else ""
        parts.append(f'<text x="8" y="{y}">{escape(workload)} ({escape(group[0].unit)}{note})</text>')
        for row in group:
            y += line
            colour = "#1f4e79" if row.is_weft else "#9db8d2"
            low, middle, high = (left + scale * v for v in (row.result.low, row.result.median, row.result.high))
            parts += [
                f'<text x="{left - 6}" y="{y}" text-anchor="end">{escape(row.runner)}</text>',
                f'<rect x="{left}" y="{y - 11}" width="{middle - left:.1f}" height="13" fill="{colour}"/>',
                f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y - 4}" y2="{y - 4}" stroke="#c0504d"/>',
                f'<text x="{max(high, middle) + 6:.1f}" y="{y}">{number(row.result.median)}</text>',
            ]
        y += line + 10
    size = f'width="{left + width + 80}" height="{y}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


# The figures that the README shows: case, model, threads, workload, setting.
HEADLINES = (
    ("vs decode", "SmolLM2-135M-Instruct.Q4_1.gguf", 2, "decode_1", "weft"),
    ("vs prefill", "SmolLM2-135M-Instruct.Q4_1.gguf", 2, "prefill_512", "weft"),
    ("vs parallel", "SmolLM2-135M-Instruct.Q4_1.gguf", 2, "parallel_32", "weft"),
    ("vs decode", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", 2, "decode_1", "weft"),
    ("vs embed", "minilm", 2, "embed_1000_mixed", "weft bf16"),
    ("vs startup", "minilm", 2, "start", "weft f32"),
)
# How a command names a model that results name by its file; None: it is the default.
NAMES = {"SmolLM2-135M-Instruct.Q4_1.gguf": None, "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf": "qwen2.5-coder"}


def figures(records: Sequence[dict[str, Any]]) -> str:
    """A Markdown table of the newest figure of each workload, model, number of threads and setting."""
    header = ("measured", "model", "threads", "weft", "share of roof", "best peer", "command", "commit")
    return _markdown(header, (_figure(one, row) for one, row in _newest(records).values()))


def headlines(records: Sequence[dict[str, Any]]) -> str:
    """The figures HEADLINES as a Markdown table, each with the command that measures it."""
    newest = _newest(records)
    cells = (_figure(*newest[key]) for key in HEADLINES)
    header = ("measured", "model", "weft", "best peer", "command")
    return _markdown(
        header, ((name, model, weft, peer, command) for name, model, _, weft, _, peer, command, _ in cells)
    )


def _newest(records: Sequence[dict[str, Any]]) -> dict[Any, tuple[dict[str, Any], dict[str, Any]]]:
    """By case, model, threads, workload and runner: the last record and its row, one with a peer where there is one.

    Records of other tools have no workloads and are left out.
    """
    found: dict[Any, tuple[dict[str, Any], dict[str, Any]]] = {}
    for one in records:
        for row in one["rows"]:
            if "workload" not in row or row["runner"].split()[0] != "weft":
                continue
            key = (one["case"], one.get("model"), one["threads"], row["workload"], row["runner"])
            if key not in found or _best_peer(one, row) or not _best_peer(*found[key]):
                found[key] = one, row
    return found


def _markdown(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in (header, ["---"] * len(header), *rows))


def _figure(one: dict[str, Any], row: dict[str, Any]) -> tuple[Any, ...]:
    setting = " ".join(row["runner"].split()[1:])
    share = f"{100 * row['share']:.0f} % of {row['roof']}" if "share" in row else ""
    name = f"`{row['workload']}`{' in ' + setting if setting else ''}"
    command = f"`{_command(one, row)}`"
    peer = _best_peer(one, row)
    return name, one.get("model", ""), one["threads"], _amount(row), share, peer, command, one["commit"]


def _command(one: dict[str, Any], row: dict[str, Any]) -> str:
    """The command line that measures a row."""
    case, setting = one["case"], row["runner"].partition(" ")[2]
    model = NAMES.get(one.get("model", ""), one.get("model"))
    named = model is not None and not (case.endswith("embed") and model == "minilm")
    parts = ["weft bench", case, f"-m {model}" if named else "", f"--threads {one['threads']}"]
    if case.endswith("embed") and setting:
        parts.append(f"--compute {_kind(setting)}")
    if case.endswith("parallel"):
        parts.append(f"--sequences {row['workload'].rpartition('_')[2]}")
    return " ".join(filter(None, parts))


def _kind(setting: str) -> str:
    """The peers' kind of arithmetic that a setting of weft is compared with."""
    return "f32" if setting == "bf16x3" else setting  # bf16x3 is close to f32


def _amount(row: dict[str, Any]) -> str:
    return f"{number(row['median'])} {row['unit']} ({number(row['low'])} to {number(row['high'])})"


def _best_peer(one: dict[str, Any], row: dict[str, Any]) -> str:
    """The best peer on weft's workload, among those with the same kind of arithmetic where weft has several."""
    peers = [p for p in one["rows"] if p["workload"] == row["workload"] and p["runner"].split()[0] != "weft"]
    setting = row["runner"].partition(" ")[2]
    if setting:
        peers = [p for p in peers if f" {_kind(setting)}" in p["runner"]]
    if not peers:
        return ""
    less = row["unit"] in LESS_IS_BETTER
    best = (min if less else max)(peers, key=lambda p: p["median"])
    ratio = best["median"] / row["median"] if less else row["median"] / best["median"]
    return f"{best['runner']} {number(best['median'])}: weft {ratio:.2f}×"
