"""weft inspect: the contents of a weight file, of any architecture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import screen

if TYPE_CHECKING:
    from weft.weights import TensorFile
    from weft.weights.sources.foreign import Foreign

LONG_TEXT = 100  # characters of a metadata value before it is cut
LONG_ARRAY = 6  # elements


@click.command()
@click.argument("model", metavar="FILE|FOLDER|NAME")
@click.option("--tensors", is_flag=True, help="List every tensor with type, shape and bytes.")
@click.option("--metadata", is_flag=True, help="Show metadata in full.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(model: str, tensors: bool, metadata: bool, as_json: bool) -> None:
    """Show the contents of a GGUF or safetensors file.

    Prints metadata, tensors and bits per weight; only the header is read. It works for architectures that weft does not
    run, too; `weft show` prints how weft reads a model. For a file of another format (ONNX, PyTorch, TensorFlow, Core
    ML, llama2.c, an archive) it prints what the file is, and what to use instead.

    \b
    Examples:
      weft inspect model.gguf
      weft inspect smollm2-135m-instruct --tensors
      weft inspect ./folder --json --metadata
      weft inspect model.onnx
    """
    path = _find(model)
    from weft.errors import ModelError, NotFoundError
    from weft.weights import open_weights
    from weft.weights.sources.foreign import identify

    try:
        found = open_weights(path)
    except (ModelError, NotFoundError):
        foreign = identify(path)
        if foreign is None:
            raise
        return _print_foreign(path, foreign, as_json)
    with found as opened:
        report = _report(path, opened, metadata)
        if tensors:
            report["tensors"] = [
                {"name": name, "dtype": str(t.dtype), "shape": list(t.shape), "bytes": t.nbytes}
                for name, t in opened.tensors.items()
            ]
    if as_json:
        screen.print_json(report)
    else:
        _print(report)


def _print_foreign(path: Path, foreign: Foreign, as_json: bool) -> None:
    """Print what a file is that weft does not read."""
    said = {"path": str(path), "format": foreign.kind, "details": foreign.details, "advice": foreign.advice}
    if as_json:
        screen.print_json({**said, "readable": False})
    else:
        screen.facts((name, value) for name, value in {**said, "readable": "not by weft"}.items() if value)


def _find(model: str) -> Path:
    """An existing path as it is, so that files weft cannot run can be inspected; else the model of that name."""
    from weft.embed.seeing import model_folder
    from weft.weights.sources import locate
    from weft.weights.sources.catalog import find

    path = Path(model).expanduser()
    return model_folder(path if path.exists() and find(model) is None else locate(model).path)


def _report(path: Path, opened: TensorFile[Any], full: bool) -> dict[str, Any]:
    elements = sum(tensor.size for tensor in opened.tensors.values())
    return {
        "path": str(path),
        "files": len(opened.files),
        "format": opened.format,
        "architecture": _architecture(opened),
        "tensor_count": len(opened.tensors),
        "elements": elements,
        "bytes": opened.nbytes,
        "bits_per_weight": round(8 * opened.nbytes / elements, 3) if elements else 0.0,
        "types": _types(opened),
        "metadata": {key: _value(opened.metadata, key, full) for key in opened.metadata},
    }


def _architecture(opened: TensorFile[Any]) -> str:
    """The architecture that the file, or the config.json beside it, states."""
    named = opened.metadata.get("general.architecture")
    if named is None:
        from weft.runtime import read_object

        named = read_object(opened.files[0].path.with_name("config.json"), missing={}).get("model_type")
    return str(named or "not stated")


def _types(opened: TensorFile[Any]) -> list[dict[str, Any]]:
    """Tensors, elements, bytes and bits per weight of each element type, largest first."""
    found: dict[str, dict[str, Any]] = {}
    for tensor in opened.tensors.values():
        row = found.setdefault(tensor.dtype.name, {"dtype": tensor.dtype.name, "tensors": 0, "elements": 0, "bytes": 0})
        row["tensors"] += 1
        row["elements"] += tensor.size
        row["bytes"] += tensor.nbytes
    for row in found.values():
        row["bits_per_weight"] = round(8 * row["bytes"] / row["elements"], 3) if row["elements"] else 0.0
    return sorted(found.values(), key=lambda row: -row["bytes"])


def _value(metadata: Mapping[str, Any], key: str, full: bool) -> Any:
    """A value as JSON; long texts and arrays are shortened unless `full`."""
    value = metadata[key]
    if isinstance(value, str):
        return value if full else screen.cut(value, LONG_TEXT)
    if isinstance(value, (bool, int, float)):
        return value
    if full or len(value) <= LONG_ARRAY:
        return value.tolist() if hasattr(value, "tolist") else list(value)
    head = value[:LONG_ARRAY]
    shown = ", ".join(map(repr, head.tolist() if hasattr(head, "tolist") else head))
    return f"[{screen.cut(shown, LONG_TEXT)}, …] ({len(value)} elements)"


def _print(report: dict[str, Any]) -> None:
    parts = f" in {report['files']} files" if report["files"] > 1 else ""
    screen.facts(
        [
            ("path", report["path"]),
            ("format", report["format"] + parts),
            ("architecture", report["architecture"]),
            ("tensors", f"{report['tensor_count']}, {screen.number(report['elements'])} weights"),
            ("size", f"{screen.size(report['bytes'])}, {report['bits_per_weight']:.2f} bits per weight"),
        ]
    )
    rows = [
        (t["dtype"], t["tensors"], screen.number(t["elements"]), screen.size(t["bytes"]), f"{t['bits_per_weight']:.2f}")
        for t in report["types"]
    ]
    click.echo()
    numbers = ("tensors", "weights", "size", "bits per weight")
    screen.table(("type", *numbers), rows, right=numbers)
    if report["metadata"]:
        click.echo()
        screen.facts(report["metadata"].items(), title="Metadata")
    if "tensors" in report:
        click.echo()
        listed = [(t["name"], t["dtype"], screen.shape(t["shape"]), t["bytes"]) for t in report["tensors"]]
        screen.table(("tensor", "type", "shape", "bytes"), listed, right=("bytes",))
