"""The card of a smaller file: how it was made and what it lost, for people (Markdown) and for programs (JSON)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.errors import InputError, NotFoundError
from weft.measure.comparison import Compared
from weft.weights.files import replacing

MATRICES = 8  # that lost most


def facts_of(source: str, output: Path, found: Compared, text: str) -> dict[str, Any]:
    """What a card says: the plan from the manifest beside `output`, and what was measured against its source."""
    manifest = read_manifest(output)
    tensors = manifest.get("tensors", {})
    types = Counter(one["to"] for one in tensors.values())
    lost = sorted(tensors.items(), key=lambda item: -item[1]["lost"])[:MATRICES]
    return {
        "source": source,
        "source_digest": manifest.get("source"),
        "file": output.name,
        "type": manifest.get("type"),
        "importance": bool(manifest.get("importance")),
        "tensors_by_type": dict(types.most_common()),
        "most_lost": [{"name": name, "type": one["to"], "lost": one["lost"]} for name, one in lost if one["lost"]],
        "text": text,
        "measured": found.as_dict(),
    }


def read_manifest(output: Path) -> dict[str, Any]:
    """What `weft quantize` wrote beside a file."""
    path = output.with_name(output.name + ".json")
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        what = f"{path.name} is missing beside {output.name}"
        raise NotFoundError("card", what, advice="write the file again with weft quantize") from None
    except ValueError as error:
        raise InputError("card", f"{path.name} is not JSON: {error}") from None
    return found


def markdown(facts: Mapping[str, Any]) -> str:
    """The card for people."""
    found = facts["measured"]
    sizes = [found["bytes_a"] / 1e6, found["bytes_b"] / 1e6]
    part = 100 * (found["perplexity_b"] / found["perplexity_a"] - 1)
    speeds = [f"{speed:.1f}" if speed else "not measured" for speed in (found["speed_a"], found["speed_b"])]
    rows = [
        ("size, MB", f"{sizes[0]:.1f}", f"{sizes[1]:.1f}"),
        ("perplexity", f"{found['perplexity_a']:.4f}", f"{found['perplexity_b']:.4f} ({part:+.2f} %)"),
        ("decode, tokens/s", *speeds),
    ]
    lines = [f"# {facts['file']}", "", f"{facts['source']} as {facts['type']}, written by weft.", ""]
    lines += ["| | source | this file |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows), ""]
    lines += [
        f"Over {found['targets']:,} tokens of {facts['text']} the divergence from the source (Kullback-Leibler, nats) "
        f"is {found['mean']:.3g} in the mean, {found['median']:.3g} in the median, {found['p99']:.3g} at the 99th "
        f"percentile and {found['max']:.3g} at most. Both choose the same token in "
        f"{100 * found['agreement']:.2f} % of the places. Speeds are those of the machine that wrote this card.",
        "",
        "## Plan",
        "",
        "| type | tensors |",
        "|---|---|",
        *(f"| {kind} | {count} |" for kind, count in facts["tensors_by_type"].items()),
        "",
    ]
    if facts["importance"]:
        lines += ["Columns were weighted by how much a calibration text uses them.", ""]
    if facts["most_lost"]:
        lines += ["## Matrices that lost most", "", "| matrix | type | part of its square |", "|---|---|---|"]
        lines += [f"| {one['name']} | {one['type']} | {one['lost']:.3g} |" for one in facts["most_lost"]] + [""]
    if found["layers"]:
        errors = " ".join(f"{error:.2g}" for error in found["layers"])
        lines += ["## Error layer by layer", "", f"|b - a| / |a| of the hidden states: {errors}", ""]
    return "\n".join(lines)


def write_card(facts: Mapping[str, Any], output: Path) -> tuple[Path, Path]:
    """Write OUTPUT.md and OUTPUT.report.json; returns both paths."""
    paths = output.with_name(output.name + ".md"), output.with_name(output.name + ".report.json")
    for path, content in zip(paths, (markdown(facts), json.dumps(facts, indent=1) + "\n"), strict=True):
        with replacing(path) as out:
            out.write(content.encode())
    return paths
