"""What a server is started with: addresses, keys, models and limits; from a command line, a TOML file, or a program."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import field, fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from weft.errors import FormatError, InputError, NotFoundError
from weft.frozen import frozen

DEFAULT_PORT = 11811
MAX_TOML = 1 << 20
MAX_KEYS = 1024
FOR_EVER = 315_360_000.0  # seconds
NAME = re.compile(r"[\w.@:/+-]{1,200}", re.ASCII)
# What a model's table in a TOML file may say, and of which types.
MODEL_OPTIONS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("context", "kv_tokens", "kv_bytes", "threads", "dimensions"), (int,)),
    **dict.fromkeys(("kv_dtype", "compute", "pooling", "instruction"), (str,)),
    **dict.fromkeys(("normalise", "matryoshka"), (bool,)),
    "prompts": (dict,),
    "label": (str, int),
}
_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


@frozen
class Limits:
    """What one client, or all of them, may take of the server. Sizes are bytes, times seconds."""

    generate_bytes: int = 8 << 20  # of a request's body
    embed_bytes: int = 16 << 20
    header_bytes: int = 32 << 10
    headers: int = 100
    uri_bytes: int = 8 << 10
    json_depth: int = 64
    json_nodes: int = 1_000_000
    running: int = 64  # requests of one model in a step
    waiting: int = 256  # requests of one model in its queue
    connections: int = 1024
    default_tokens: int = 4096  # of an answer whose request names no number
    embed_inputs: int = 2048
    embed_tokens: int = 65_536  # of one request, all inputs together
    header_s: float = 10.0
    body_s: float = 30.0  # and more for as long as a kilobyte a second comes
    keep_alive_s: float = 15.0
    stall_s: float = 30.0  # that a reader of a stream may take none of it
    request_s: float = 600.0
    drain_s: float = 30.0


@frozen
class ModelSpec:
    """A model that may be served. `options` are those of weft.load, weft.Embedder or weft.Reranker."""

    name: str
    source: str  # what `weft.load` takes: a catalogue name, org/name, a folder or a file
    options: Mapping[str, Any] = field(default_factory=dict)
    keep_alive_s: float | None = None  # idle time after which it is unloaded; None: the server's
    preload: bool = False


@frozen
class Settings:
    """Everything a server is started with; `checked` holds it to the rules that keep it safe."""

    models: tuple[ModelSpec, ...] = ()
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    socket: Path | None = None  # a Unix socket, in place of host and port
    keys: tuple[str, ...] = field(default=(), repr=False)
    allow_unauthenticated: bool = False
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    budget_bytes: int | None = None  # of all loaded models; None: nine tenths of what is free at the start
    keep_alive_s: float | None = None  # None: a model stays until another needs its place
    lora_dir: Path | None = None
    allow_pull: bool = False
    collector: str = ""  # of OpenTelemetry's spans, as http://127.0.0.1:4318
    limits: Limits = field(default_factory=Limits)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return self.socket is not None or is_loopback(self.host)

    def checked(self) -> Settings:
        """These settings, or an error where starting with them would be unsafe or impossible."""
        if not self.models:
            raise InputError("[serve] no model is named; give one, as `weft serve smollm2-135m-instruct`")
        names = [spec.name for spec in self.models]
        for name in names:
            if not NAME.fullmatch(name):
                raise InputError(f"[serve] {name!r:.80} is no model name; letters, digits and . _ - : / @ + are")
            if names.count(name) > 1:
                raise InputError(f"[serve] two models are called {name}; give one another name with NAME=PATH")
        if not self.loopback and not self.keys and not self.allow_unauthenticated:
            raise InputError(
                f"[serve] {self.host} can be reached from other machines and no key is set: give --api-key-file or "
                "WEFT_API_KEY, or say --allow-unauthenticated if everybody may use it"
            )
        if not 0 <= self.port <= 65535:
            raise InputError(f"[serve] the port is {self.port}; 0 to 65535 are possible")
        if self.collector and not re.fullmatch(r"https?://[\w.:\[\]-]+(?:/[\w./-]*)?", self.collector):
            raise InputError(
                f"[serve] {self.collector!r:.80} is no address of a collector; http://127.0.0.1:4318 is one"
            )
        if any(not key or not key.isascii() or not key.isprintable() or " " in key for key in self.keys):
            raise InputError("[serve] a key has spaces, or characters that a header cannot carry")
        return self


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine alone."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


def read_keys(path: Path) -> tuple[str, ...]:
    """The keys in a file, one a line; lines that begin with # are comments."""
    try:
        if path.stat().st_size > MAX_TOML:
            raise FormatError(f"[{path.name}] over {MAX_TOML >> 20} MiB is no file of keys")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NotFoundError(f"[serve] the file of keys cannot be read: {path}: {error}") from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not keys or len(keys) > MAX_KEYS:
        raise FormatError(f"[{path.name}] has {len(keys)} keys; 1 to {MAX_KEYS} are wanted, one a line")
    return keys


def model_spec(argument: str) -> ModelSpec:
    """`NAME=SOURCE`, or a source alone: its name is then the last part of it, without the ending of a file."""
    name, equals, source = argument.partition("=")
    if equals and NAME.fullmatch(name) and source:
        return ModelSpec(name, source)
    path = Path(argument)
    if path.suffix == ".gguf" and path.is_file():
        return ModelSpec(path.stem, argument)
    return ModelSpec(path.resolve().name if path.is_dir() else argument, argument)


def seconds(text: str | float) -> float:
    """A time: 300, "300", "5m", "1.5h"; negative means for ever, and so does what is longer than ten years."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        return float(text) if text <= FOR_EVER else -1.0
    found = re.fullmatch(r"(-?\d+(?:\.\d+)?)(ms|s|m|h|)", str(text).strip())
    if found is None:
        raise InputError(f"[serve] {text!r:.40} is no time; give seconds, or 30s, 5m, 1h")
    value = float(found[1]) * _UNITS[found[2]]
    return value if value <= FOR_EVER else -1.0


def size_bytes(text: str | int) -> int:
    """A size: 4000000000, "4G", "512Mi"."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?", str(text).strip().lower())
    if found is None or isinstance(text, bool) or found[2] not in _SIZES:
        raise InputError(f"[serve] {text!r:.40} is no size; give bytes, or 500M, 4G, 4Gi")
    return int(float(found[1]) * _SIZES[found[2]])


def read_toml(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, as keyword arguments of Settings; what is unknown is an error that names it."""
    found = _toml(path)
    where = path.name
    models = tuple(_table(where, name, entry) for name, entry in _take(where, found, "models", dict, {}).items())
    limits = _take(where, found, "limits", dict, {})
    known: dict[str, Any] = {f.name: type(f.default) for f in fields(Limits)}
    for name, value in limits.items():
        if name not in known:
            raise FormatError(f"[{where}] limits.{name} is unknown; there are {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise FormatError(f"[{where}] limits.{name} is {value!r:.40}; a number above 0 is wanted")
    result: dict[str, Any] = {"models": models, "limits": Limits(**{n: known[n](v) for n, v in limits.items()})}
    for name, kind in (("host", str), ("port", int), ("allow_pull", bool), ("collector", str)):
        if name in found:
            result[name] = _take(where, found, name, kind, None)
    for name in ("allowed_hosts", "allowed_origins"):
        if name in found:
            result[name] = tuple(map(str, _take(where, found, name, list, [])))
    for name, convert in (
        ("keep_alive", seconds),
        ("budget", size_bytes),
        ("lora_dir", Path),
        ("socket", Path),
        ("api_key_file", lambda given: read_keys(Path(given))),
    ):
        if name in found:
            target = {"keep_alive": "keep_alive_s", "budget": "budget_bytes", "api_key_file": "keys"}.get(name, name)
            result[target] = convert(found.pop(name))
    if found:
        raise FormatError(f"[{where}] unknown setting {', '.join(sorted(found))}")
    return result


def _toml(path: Path) -> dict[str, Any]:
    reader = next((name for name in ("tomllib", "tomli") if find_spec(name)), None)  # Python 3.10 has none of its own
    if reader is None:
        raise NotFoundError("[serve] reading TOML needs Python 3.11, or `pip install tomli`")
    try:
        if path.stat().st_size > MAX_TOML:
            raise FormatError(f"[{path.name}] over {MAX_TOML >> 20} MiB")
        found: dict[str, Any] = import_module(reader).loads(path.read_text(encoding="utf-8"))
        return found
    except OSError as error:
        raise NotFoundError(f"[serve] {path} cannot be read: {error}") from None
    except ValueError as error:
        raise FormatError(f"[{path.name}] {error}") from None


def _take(where: str, table: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    value = table.pop(name, default)
    if not isinstance(value, kind):
        raise FormatError(f"[{where}] {name} is {value!r:.40}; {kind.__name__} is wanted")
    return value


def _table(where: str, name: str, entry: Any) -> ModelSpec:
    """One `[models.NAME]` table, or `NAME = "source"`."""
    if isinstance(entry, str):
        return ModelSpec(name, entry)
    if not isinstance(entry, dict) or not isinstance(entry.get("source"), str):
        raise FormatError(f"[{where}] models.{name} has no source; give a name, a folder or a file")
    options = {key: value for key, value in entry.items() if key not in ("source", "keep_alive", "preload")}
    for key, value in options.items():
        if key not in MODEL_OPTIONS:
            raise FormatError(f"[{where}] models.{name}.{key} is unknown; there are {', '.join(MODEL_OPTIONS)}")
        if type(value) not in MODEL_OPTIONS[key]:
            kinds = " or ".join(kind.__name__ for kind in MODEL_OPTIONS[key])
            raise FormatError(f"[{where}] models.{name}.{key} is {value!r:.40}; {kinds} is wanted")
    keep_alive = entry.get("keep_alive")
    return ModelSpec(
        name,
        entry["source"],
        options,
        None if keep_alive is None else seconds(keep_alive),
        bool(entry.get("preload", False)),
    )
