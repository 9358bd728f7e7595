"""weft serve: models over HTTP."""

from __future__ import annotations

import shlex
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import options, screen
from weft.errors import NotFoundError, UnsupportedError

if TYPE_CHECKING:
    from weft.serve.models.pool import Entry
    from weft.serve.settings import ModelSpec, Settings


VERBS = {"generate": "generates", "embed": "embeds", "rerank": "reranks", "classify": "classifies"}


@click.command()
@click.argument("models", nargs=-1, metavar="[NAME=]MODEL...")
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), help="Read settings and models from a TOML file."
)
@click.option("--host", help="Address to listen on (default: 127.0.0.1, this machine only).")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on (default: 11811; 0 picks a free one).")
@click.option(
    "--socket",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Listen on a Unix socket at this path instead of a port.",
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path),
    help="File of API keys, one per line; clients must send one. Or set WEFT_API_KEY.",
)
@click.option(
    "--tls-cert",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Speak HTTPS with this certificate (PEM); read again when the file changes. Needs --tls-key.",
)
@click.option(
    "--tls-key", type=click.Path(path_type=Path, dir_okay=False), help="The private key of the certificate (PEM)."
)
@click.option("--allow-unauthenticated", is_flag=True, help="Allow other machines to connect without a key.")
@click.option(
    "--allowed-host", multiple=True, metavar="NAME", help="Answer requests for this host name too (others get 403)."
)
@click.option(
    "--allow-origin", multiple=True, metavar="ORIGIN", help="Allow requests from web pages of this origin (CORS)."
)
@click.option(
    "--allow-image-host",
    multiple=True,
    metavar="NAME",
    help="Fetch pictures from this host when a request has their address (default: addresses are refused).",
)
@click.option("--budget", metavar="SIZE", help="Memory for all models together, as 8G (default: 90% of free memory).")
@click.option(
    "--keep-alive", metavar="TIME", help="Unload models that have been idle for this time, as 10m (default: never)."
)
@click.option("--preload/--no-preload", default=None, help="Load models at the start (default: if there is only one).")
@click.option(
    "--lora-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of LoRA adapters that clients may load.",
)
@click.option(
    "--training-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Allow clients to train adapters, which are kept in this folder.",
)
@click.option(
    "--lab",
    "lab_dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Host the page with models that run in the browser at /lab/, from the folder that `make lab` wrote.",
)
@click.option(
    "--registry",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Serve versions of this registry as registry:NAME@ALIAS, and follow the alias; without models, everything in "
    "production.",
)
@click.option(
    "--prefix-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the KV cache of prompts here, so that a restarted server does not compute them again.",
)
@click.option("--prefix-size", metavar="SIZE", help="Disk space for each model in --prefix-dir (default: 4Gi).")
@click.option("--allow-pull", is_flag=True, help="Allow clients to download models (Ollama's /api/pull).")
@click.option(
    "--strict", is_flag=True, help="Refuse request settings that have no effect here (default: name them in a header)."
)
@click.option(
    "--max-running", type=click.IntRange(1), metavar="N", help="Requests that a model runs at once (default: 64)."
)
@click.option("--max-waiting", type=click.IntRange(1), metavar="N", help="Requests in a model's queue (default: 256).")
@click.option(
    "--drift-reference",
    multiple=True,
    metavar="[NAME=]FILE",
    help="Watch an embedding model's vectors for drift from those in this .npy file; gauges are on /metrics.",
)
@click.option(
    "--drift-false-alarms",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="RATE",
    help="Probability of an alarm within 1,000 checks of vectors that have not moved (default: 0.01).",
)
@click.option("--drift-webhook", metavar="URL", help="Post to this URL when vectors have drifted.")
@click.option(
    "--collector", metavar="URL", help="Send OpenTelemetry spans to this collector, as http://127.0.0.1:4318."
)
@click.option(
    "--log",
    "log_style",
    type=click.Choice(["text", "json", "off"]),
    default="text",
    show_default=True,
    help="Format of the log.",
)
@options.loading()
def command(models: tuple[str, ...], config: Path | None, log_style: str, **given: Any) -> None:
    """Serve models over HTTP.

    The server speaks the APIs of OpenAI, Anthropic, Ollama and TEI, and has a web page for chat. Models are loaded on
    first use, and unloaded when others need the memory. Only this machine can reach the server unless --host says
    otherwise; then clients need a key.

    \b
    Examples:
      weft serve smollm2-135m-instruct
      weft serve chat=./model.gguf embed=all-MiniLM-L6-v2 --port 8000
      weft serve smollm2-135m-instruct --prefix-dir ~/.cache/weft-prefixes
      weft serve smollm2-135m-instruct --lab build/lab
      weft serve --registry ./registry registry:support@production
      weft serve all-MiniLM-L6-v2 --drift-reference may.npy --drift-webhook https://example.org/alarm
      weft serve --config models.toml --host 0.0.0.0 --api-key-file keys.txt
      weft serve --host 0.0.0.0 --api-key-file keys.txt --tls-cert cert.pem --tls-key key.pem
    """
    _require_extra()
    from weft.serve import presence
    from weft.serve.http.logs import configure
    from weft.serve.http.server import listen, port_of, run

    settings = _settings(models, config, given).checked()
    entries = _entries(settings)
    if log_style != "off":
        configure(log_style)

    def started(port: int) -> None:
        _summary(replace(settings, port=port), entries)

    bound = listen(settings)
    path = str(settings.socket.resolve()) if settings.socket is not None else ""
    with presence.announced(settings.host, port_of(bound), path, _certificate(settings)):
        run(settings, entries, started, bound)


def _require_extra() -> None:
    missing = next((name for name in ("starlette", "uvicorn", "msgspec") if find_spec(name) is None), None)
    if missing is not None:
        raise UnsupportedError("serve", f"{missing} is not installed", advice="run: pip install weft-engine[serve]")


def _settings(models: tuple[str, ...], config: Path | None, given: dict[str, Any]) -> Settings:
    from weft import flags
    from weft.serve.settings import Settings, drift_reference, model_spec, read_keys, read_toml, seconds, size_bytes

    found: dict[str, Any] = read_toml(config) if config is not None else {}
    loading = {name: given[name] for name in options.LOADING if given[name] is not None}
    specs = [*map(model_spec, models), *found.pop("models", ())]
    registry = given["registry"] or found.get("registry")
    if not specs and registry is not None:
        specs = _in_production(registry)
    if not specs:
        specs = [model_spec(options.DEFAULT_GENERATOR)]
    preload = given["preload"] if given["preload"] is not None else len(specs) == 1
    found["models"] = tuple(
        replace(spec, options={**loading, **spec.options}, preload=spec.preload or preload) for spec in specs
    )
    folders = ("lora_dir", "training_dir", "lab_dir", "registry", "prefix_dir")
    watching = ("drift_false_alarms", "drift_webhook")
    for name in ("host", "port", "socket", "tls_cert", "tls_key", "collector", *watching, *folders):
        if given[name] is not None:
            found[name] = given[name]
    if given["drift_reference"]:
        found["drift_references"] = tuple(map(drift_reference, given["drift_reference"]))
    if given["api_key_file"] is not None:
        found["keys"] = read_keys(given["api_key_file"])
    elif flags.get("WEFT_API_KEY"):
        found["keys"] = (flags.get("WEFT_API_KEY"),)
    found["allowed_hosts"] = (*found.get("allowed_hosts", ()), *given["allowed_host"])
    found["allowed_origins"] = (*found.get("allowed_origins", ()), *given["allow_origin"])
    found["image_hosts"] = (*found.get("image_hosts", ()), *given["allow_image_host"])
    found["allow_unauthenticated"] = given["allow_unauthenticated"]
    for name in ("allow_pull", "strict"):
        found[name] = found.get(name, False) or given[name]
    if given["budget"] is not None:
        found["budget_bytes"] = size_bytes(given["budget"])
    if given["prefix_size"] is not None:
        found["prefix_bytes"] = size_bytes(given["prefix_size"])
    if given["keep_alive"] is not None:
        found["keep_alive_s"] = seconds(given["keep_alive"])
    settings = Settings(**found)
    limits = {"running": given["max_running"], "waiting": given["max_waiting"]}
    return replace(settings, limits=replace(settings.limits, **{n: v for n, v in limits.items() if v is not None}))


def _entries(settings: Settings) -> list[Entry]:
    """An entry for each model; models that are not on this machine are downloaded first."""
    from weft import flags
    from weft.registry.reference import using
    from weft.serve.versions.following import entry_for, registry_folder
    from weft.weights.sources import locate

    folder = registry_folder(settings)
    with using(folder):
        for spec in settings.models:
            locate(spec.source, offline=True if flags.offline_reason() else None)
    return [entry_for(spec, folder) for spec in settings.models]


def _in_production(folder: Path) -> list[ModelSpec]:
    """What a registry has in production, each under its own name."""
    from weft.registry import Registry
    from weft.serve.settings import model_spec

    with Registry(folder, create=False) as registry:
        found = [one.name for one in registry.names() if one.kind != "index" and "production" in one.aliases]
    if not found:
        advice = "promote a version with `weft registry promote NAME@VERSION`, or name a model"
        raise NotFoundError("serve", f"the registry in {folder} has nothing in production", advice=advice)
    return [model_spec(f"registry:{name}@production") for name in found]


def _summary(settings: Settings, entries: list[Entry]) -> None:
    """Print where the server listens, its models, and an example request."""
    from weft import __version__
    from weft.runtime import plan_threads
    from weft.runtime.memory import SHARE, free_memory
    from weft.serve.presence import Presence

    server = Presence(0, settings.host, settings.port, 0.0, certificate=_certificate(settings))
    url = server.url if settings.socket is None else "http://localhost"
    free = free_memory()
    budget = settings.budget_bytes or int(SHARE * free.available_bytes)
    threads = plan_threads(
        next((spec.options["threads"] for spec in settings.models if "threads" in spec.options), None)
    )
    reach = "only this machine can connect" if settings.loopback else "anybody who can connect may use it"
    key = f"{len(settings.keys)} accepted" if settings.keys else f"none; {reach}"
    lab = [("lab", f"{url}/lab/")] if settings.lab_dir is not None else []
    places = [("page", f"{url}/"), *lab, ("OpenAI", f"{url}/v1"), ("Anthropic, Ollama, TEI", url)]
    rows = [
        *(places if settings.socket is None else [("socket", str(settings.socket))]),
        ("API keys", key),
        ("threads", f"{threads.count}: {'; '.join(threads.reasons)}"),
        *([("prefix cache", str(settings.prefix_dir))] if settings.prefix_dir is not None else []),
        ("memory", f"{screen.size(budget)} for models, of {screen.size(free.available_bytes)}: {free.reason}"),
    ]
    screen.facts(rows, title=f"weft {__version__} is serving")
    click.echo()
    names = {"weights": "weights", "kv": "KV cache", "work": "buffers"}
    shown = [
        (
            entry.name,
            VERBS[entry.kind],
            f"{entry.outline.max_tokens} tokens",
            screen.size(entry.outline.total_bytes),
            ", ".join(f"{names[use]} {screen.size(count)}" for use, count in entry.outline.bytes.items()),
            "now" if entry.spec.preload else "when first used",
        )
        for entry in entries
    ]
    screen.table(["model", "", "context", "memory", "of which", "loaded"], shown, right=("memory",))
    click.echo()
    click.echo(_snippet(url, entries[0], settings))
    click.echo()
    screen.note("Press Ctrl-C to stop: running requests finish first. Press it again to stop at once.")


def _certificate(settings: Settings) -> str:
    """The path of the certificate; empty without TLS."""
    return str(settings.tls_cert.resolve()) if settings.tls_cert is not None else ""


def _snippet(url: str, entry: Entry, settings: Settings) -> str:
    """An example request for curl."""
    key = ' -H "Authorization: Bearer $WEFT_API_KEY"' if settings.keys else ""
    through = f"--unix-socket {shlex.quote(str(settings.socket))} " if settings.socket is not None else ""
    if entry.kind == "embed":
        body = f'{{"model": "{entry.name}", "input": ["a cat", "a dog"]}}'
        path = "/v1/embeddings"
    elif entry.kind == "rerank":
        body = f'{{"model": "{entry.name}", "query": "a pet", "documents": ["a cat", "a car"]}}'
        path = "/v1/rerank"
    elif entry.kind == "classify":
        body = f'{{"model": "{entry.name}", "input": ["a fine day", "a dull film"]}}'
        path = "/v1/classify"
    else:
        body = f'{{"model": "{entry.name}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
        path = "/v1/chat/completions"
    return f"curl {through}{url}{path}{key} -H 'Content-Type: application/json' -d '{body}'"
