"""weft doctor: the machine, what weft uses of it and why, and the memory a model needs."""

from __future__ import annotations

import platform
from typing import Any

import click

from weft.cli import options, screen


@click.command()
@click.argument("model", required=False)
@options.context()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(model: str | None, context: int | None, as_json: bool) -> None:
    """Show the machine, what weft uses of it and why.

    With a model, also shows the memory that loading it takes, without reading its weights; the KV cache is counted as
    full: 16 whole contexts of up to 8192 tokens, or fewer where a quarter of the memory that is left has no room. Of a
    model that sees, its picture tower is counted, and the largest picture while it is read.

    \b
    Examples:
      weft doctor
      weft doctor smollm2-135m-instruct --context 2048
      WEFT_ISA=avx2 weft doctor --json
    """
    if model is None and context is not None:
        raise click.UsageError("--context is for a MODEL, whose memory depends on it")
    report: dict[str, Any] = {
        "processor": _processor(),
        "memory": _memory(),
        "gpu": _gpu(),
        "software": _software(),
        "caches": _caches(),
        "offline": _offline(),
    }
    if model is not None:
        report["model"] = _model(model, context, report["memory"]["available_bytes"])
    if as_json:
        screen.print_json(report)
    else:
        _print(report)


def _processor() -> dict[str, Any]:
    from weft import flags
    from weft.backends.cpu import CpuBackend, levels_present
    from weft.runtime import plan_threads
    from weft.runtime.machine import cpu_name

    threads = plan_threads()
    return {
        "name": cpu_name(),
        "levels": levels_present(),
        "level": CpuBackend().level,
        "level_reason": "WEFT_ISA asks for it" if flags.get("WEFT_ISA") else "the highest of those present",
        "threads": threads.count,
        "threads_reasons": list(threads.reasons),
    }


def _memory() -> dict[str, Any]:
    from weft.runtime.machine import huge_pages
    from weft.runtime.memory import SHARE, free_memory

    free = free_memory()
    return {
        "available_bytes": free.available_bytes,
        "reason": free.reason,
        "usable_bytes": int(SHARE * free.available_bytes),
        "huge_pages": huge_pages(),
    }


def _gpu() -> dict[str, Any]:
    from weft import flags
    from weft.backends import describe_gpus

    found, automatic = describe_gpus()
    asked = flags.get("WEFT_BACKEND")
    reason = f"WEFT_BACKEND asks for it; {automatic}" if asked else f"unless --device says another; {automatic}"
    return {"found": found, "device": asked or "cpu", "reason": reason}


def _software() -> dict[str, str]:
    import weft

    packages = {name: _version(name) for name in ("numpy", "jinja2", "click", "rich")}
    system = f"{platform.system()} {platform.release()}"
    return {"weft": weft.__version__, "python": platform.python_version(), **packages, "system": system}


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown: it was not installed as a package"


def _caches() -> list[dict[str, Any]]:
    from weft.runtime.machine import folder_bytes
    from weft.weights.sources.folders import hub_cache, weft_cache

    folders = {"weft": weft_cache(), "hub": hub_cache()}
    return [{"name": name, "path": str(path), "bytes": folder_bytes(path)} for name, path in folders.items()]


def _offline() -> dict[str, Any]:
    from weft import flags

    reason = flags.offline_reason()
    return {"on": reason is not None, "reason": reason}


def _model(model: str, context: int | None, available_bytes: int) -> dict[str, Any]:
    from weft.cli.outline import open_outline
    from weft.runtime.memory import SHARE

    outline = open_outline(model, context=context)
    total = sum(outline.memory.values())
    return {
        "model": model,
        "path": str(outline.checkpoint.path),
        "context": outline.info.get("context"),
        "bytes": outline.memory,
        "total_bytes": total,
        "fits": total <= SHARE * available_bytes,
    }


def _print(report: dict[str, Any]) -> None:
    cpu, memory, offline = report["processor"], report["memory"], report["offline"]
    levels = " ".join(f"[{level}]" if level == cpu["level"] else level for level in cpu["levels"])
    rows = [
        ("name", cpu["name"]),
        ("levels", f"{levels}: {cpu['level']} is used, {cpu['level_reason']}"),
        ("threads", f"{cpu['threads']}: {'; '.join(cpu['threads_reasons'])}"),
    ]
    screen.facts(rows, title="Processor")
    usable = f"weft plans with at most {screen.size(memory['usable_bytes'])}"
    rows = [
        ("free", f"{screen.size(memory['available_bytes'])}: {memory['reason']}; {usable}"),
        ("huge pages", memory["huge_pages"]),
    ]
    click.echo()
    screen.facts(rows, title="Memory")
    click.echo()
    _print_gpu(report["gpu"])
    click.echo()
    screen.facts(report["software"].items(), title="Software")
    rows = [(f"{c['name']} cache", f"{c['path']}, {screen.size(c['bytes'])}") for c in report["caches"]]
    rows.append(("offline", f"yes: {offline['reason']}" if offline["on"] else "no: models are downloaded when needed"))
    click.echo()
    screen.facts(rows, title="Models")
    if "model" in report:
        click.echo()
        _print_model(report["model"])


def _print_gpu(gpu: dict[str, Any]) -> None:
    rows = [("device", f"{gpu['device']}, {gpu['reason']}")]
    for one in gpu["found"]:
        free = one["memory"] if one["free_bytes"] is None else f"{screen.size(one['free_bytes'])} free"
        kind = "a software device, slow" if one["software"] else one["kind"]
        limits = f"memory: {free}; buffers of at most {screen.size(one['buffer_bytes'])}"
        rows.append((one["device"], f"{one['name']} ({one['api']}, {kind}); {limits}"))
    screen.facts(rows, title="GPU")


def _print_model(model: dict[str, Any]) -> None:
    names = {"weights": "weights", "kv": "KV cache", "work": "working memory"}
    rows = [(names[name], screen.size(count)) for name, count in model["bytes"].items()]
    if model["context"]:
        rows.append(("context", f"{model['context']} tokens"))
    verdict = "it fits" if model["fits"] else "it does not fit; give a smaller --context, or a smaller quantisation"
    rows.append(("total", f"{screen.size(model['total_bytes'])}: {verdict}"))
    screen.facts(rows, title=model["model"])
