"""The settings of a server: addresses, keys, models and limits; from a command line, a TOML file, or a program."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import field, fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from weft import flags
from weft.errors import FormatError, InputError, NotFoundError
from weft.frozen import frozen
from weft.pictures import PictureLimits
from weft.serve.certificate import Certificate

DEFAULT_PORT = 11811
MAX_TOML = 1 << 20
MAX_KEYS = 1024
FOR_EVER = 315_360_000.0  # seconds
NAME = re.compile(r"[\w.@:/+-]{1,200}", re.ASCII)
_HOST = re.compile(r"(?:[a-z0-9_.-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::\d{1,5})?")
# The options of a model's table in a TOML file, and their types.
MODEL_OPTIONS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("context", "kv_tokens", "kv_bytes", "expert_bytes", "threads", "dimensions"), (int,)),
    **dict.fromkeys(("kv_dtype", "compute", "mmproj", "pooling", "instruction"), (str,)),
    **dict.fromkeys(("normalise", "matryoshka"), (bool,)),
    "prompts": (dict,),
    "label": (str, int),
}
# A setting of a TOML file that has another name in Settings.
_TARGETS = {
    "keep_alive": "keep_alive_s",
    "budget": "budget_bytes",
    "api_key_file": "keys",
    "prefix_size": "prefix_bytes",
}
_TYPES = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "a table",
    list: "a list",
}
_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@frozen
class Limits:
    """Limits for one client, or for all of them together. Sizes are in bytes, times in seconds."""

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
    bodies: int = 512  # requests whose body is still arriving
    bodies_bytes: int = 256 << 20  # of those bodies together
    default_tokens: int = 4096  # of an answer, where the request sets no limit
    embed_inputs: int = 2048
    embed_tokens: int = 65_536  # of one request, all inputs together
    picture_bytes: int = 12 << 20  # of a picture's file
    picture_pixels: int = 40_000_000  # about four bytes of memory each while it is read
    picture_fetch_s: float = 10.0  # for a picture of `image_hosts`, redirects included
    header_s: float = 10.0
    body_s: float = 15.0  # for a body, and between its parts; extended while `body_rate` is kept
    body_rate: int = 8 << 10  # bytes a second
    keep_alive_s: float = 15.0
    stall_s: float = 30.0  # that the reader of a stream may pause
    request_s: float = 600.0
    drain_s: float = 30.0
    rejoin_s: float = 120.0  # that a stream may be kept for a client that lost its connection
    kept_streams: int = 64  # of one key, under way
    kept_bytes: int = 64 << 20  # of the events of all kept streams
    responses: int = 1000  # that are stored for GET and previous_response_id
    responses_bytes: int = 64 << 20

    @property
    def of_pictures(self) -> PictureLimits:
        return PictureLimits(file_bytes=self.picture_bytes, pixels=self.picture_pixels)


@frozen
class ModelSpec:
    """A model that may be served. `options` are those of weft.load, weft.Embedder or weft.Reranker."""

    name: str
    source: str  # as for `weft.load`: a catalogue name, org/name, a folder or a file
    options: Mapping[str, Any] = field(default_factory=dict)
    keep_alive_s: float | None = None  # idle time after which it is unloaded; None: the server's
    preload: bool = False


@frozen
class Settings:
    """The settings of a server; `checked` refuses those that are unsafe or impossible."""

    models: tuple[ModelSpec, ...] = ()
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    socket: Path | None = None  # a Unix socket, in place of host and port
    keys: tuple[str, ...] = field(default=(), repr=False)
    allow_unauthenticated: bool = False
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    image_hosts: tuple[str, ...] = ()  # hosts that pictures are fetched from, when a request has an address
    budget_bytes: int | None = None  # of all loaded models; None: 90 % of the memory free at the start
    keep_alive_s: float | None = None  # None: a model stays loaded until another needs its memory
    lora_dir: Path | None = None
    training_dir: Path | None = None  # where runs of training are kept; None: this server does not train
    lab_dir: Path | None = None  # the page with models that run in a tab, for /lab/; None: there is none
    registry: Path | None = None  # of the models that are named registry:NAME@…; None: WEFT_REGISTRY
    prefix_dir: Path | None = None  # where KV pages of prompts are kept between starts
    prefix_bytes: int = 4 << 30  # of one model's pages in `prefix_dir`
    allow_pull: bool = False
    tls_cert: Path | None = None  # a PEM file: the certificate, and those that vouch for it
    tls_key: Path | None = None  # a PEM file: the certificate's private key
    strict: bool = False  # refuse settings that would be ignored
    drift_references: tuple[tuple[str, Path], ...] = ()  # models, and files of vectors that theirs are compared with
    drift_false_alarms: float = 0.01  # the probability of an alarm within 1,000 checks of vectors that did not move
    drift_webhook: str = ""  # is told about an alarm
    collector: str = ""  # for OpenTelemetry spans, as http://127.0.0.1:4318
    limits: Limits = field(default_factory=Limits)

    @property
    def scheme(self) -> str:
        return "http" if self.tls_cert is None else "https"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return self.socket is not None or is_loopback(self.host)

    def checked(self) -> Settings:
        """These settings; an error if starting with them would be unsafe or impossible."""
        if not self.models:
            raise InputError("serve", "no model is given", advice="name one, as in: weft serve smollm2-135m-instruct")
        names = [spec.name for spec in self.models]
        for name in names:
            if not NAME.fullmatch(name):
                reason = f"{name!r:.80} is not a valid model name"
                raise InputError("serve", reason, advice="use letters, digits and . _ - : / @ +; NAME=PATH sets a name")
            if names.count(name) > 1:
                raise InputError("serve", f"two models are called {name}", advice="rename one with NAME=PATH")
        if not self.loopback and not self.keys and not self.allow_unauthenticated:
            raise InputError(
                "serve",
                f"other machines can reach {self.host}, and no API key is set",
                advice="set one with --api-key-file or WEFT_API_KEY, or allow everybody with --allow-unauthenticated",
            )
        self._check_tls()
        for host in self.image_hosts:
            if host_entry(host) is None:
                what = "must be names of hosts, as pictures.example.org or 10.0.0.5:8080"
                raise InputError("serve", what, field="image_hosts", given=host)
        if self.lab_dir is not None and not (self.lab_dir / "index.html").is_file():
            advice = "write the page into a folder with `make lab`, and name that folder"
            raise NotFoundError("serve", f"{self.lab_dir} has no index.html, so it is not the page", advice=advice)
        if not 0 <= self.port <= 65535:
            raise InputError("serve", "must be 0 to 65535", field="port", given=self.port)
        if not 0 < self.drift_false_alarms < 1:
            given = self.drift_false_alarms
            raise InputError("serve", "must be between 0 and 1", field="drift_false_alarms", given=given)
        if self.drift_webhook and not re.fullmatch(r"https?://\S+", self.drift_webhook):
            wanted = "must be a URL such as https://example.org/alarm"
            raise InputError("serve", wanted, field="drift_webhook", given=self.drift_webhook)
        if self.collector and not re.fullmatch(r"https?://[\w.:\[\]-]+(?:/[\w./-]*)?", self.collector):
            wanted = "must be a URL such as http://127.0.0.1:4318"
            raise InputError("serve", wanted, field="collector", given=self.collector)
        if any(not key or not key.isascii() or not key.isprintable() or " " in key for key in self.keys):
            raise InputError("serve", "an API key is empty, or has spaces or characters that no header can carry")
        return self

    def _check_tls(self) -> None:
        if self.tls_cert is None and self.tls_key is None:
            return
        if self.tls_cert is None or self.tls_key is None:
            missing, given = ("--tls-cert", "--tls-key") if self.tls_cert is None else ("--tls-key", "--tls-cert")
            raise InputError("serve", f"{given} is given without {missing}", advice="TLS needs both files")
        if self.socket is not None:
            raise InputError("serve", "TLS is not used on a Unix socket", advice="leave out --tls-cert and --tls-key")
        Certificate(self.tls_cert, self.tls_key)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is reachable from this machine only."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


def is_address(host: str) -> bool:
    """Whether a host is an IP address, not a name."""
    try:
        ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    return True


def host_entry(given: str) -> str | None:
    """A host that the operator names, as NAME, ADDRESS or either with :PORT, in the form that is compared; None if it
    is none."""
    text = given.strip().lower().rstrip(".")
    if text.count(":") > 1 and not text.startswith("["):
        text = f"[{text}]"  # an IPv6 address alone
    return text if _HOST.fullmatch(text) else None


def read_keys(path: Path) -> tuple[str, ...]:
    """The keys in a file, one per line; lines that begin with # are comments."""
    try:
        if path.stat().st_size > MAX_TOML:
            raise FormatError(path.name, f"is over {MAX_TOML >> 20} MiB, too large for a file of keys")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise NotFoundError("serve", f"cannot read the file of API keys {path}: {reason}") from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not keys or len(keys) > MAX_KEYS:
        raise FormatError(path.name, f"has {len(keys)} keys; 1 to {MAX_KEYS} are expected, one per line")
    return keys


def model_spec(argument: str) -> ModelSpec:
    """`NAME=SOURCE`, or a source alone; its name is then that of the folder or in the registry, or of the file without
    its suffix."""
    name, equals, source = argument.partition("=")
    if equals and NAME.fullmatch(name) and source:
        return ModelSpec(name, source)
    if argument.startswith("registry:"):
        return ModelSpec(argument.removeprefix("registry:").partition("@")[0], argument)
    path = Path(argument)
    if path.suffix == ".gguf" and path.is_file():
        return ModelSpec(path.stem, argument)
    return ModelSpec(path.resolve().name if path.is_dir() else argument, argument)


def drift_reference(argument: str) -> tuple[str, Path]:
    """`NAME=FILE`, or a file alone: the reference of the only embedding model."""
    name, equals, file = argument.partition("=")
    return (name, Path(file)) if equals and NAME.fullmatch(name) and file else ("", Path(argument))


def seconds(text: str | float) -> float:
    """Seconds from a time such as 300, "300", "5m", "1.5h"; negative, or above ten years, means for ever."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        return float(text) if text <= FOR_EVER else -1.0
    found = re.fullmatch(r"(-?\d+(?:\.\d+)?)(ms|s|m|h|)", str(text).strip())
    if found is None:
        raise InputError("serve", "not a time", given=text, advice="write seconds, or 30s, 5m, 1h")
    value = float(found[1]) * _UNITS[found[2]]
    return value if value <= FOR_EVER else -1.0


def size_bytes(text: str | int) -> int:
    """Bytes from a size such as 4000000000, "4G", "512Mi"."""
    found = None if isinstance(text, bool) else flags.size_bytes(str(text))
    if found is None:
        raise InputError("serve", "not a size", given=text, advice="write bytes, or 500M, 4G, 4Gi")
    return found


def read_toml(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, as keyword arguments of Settings; an unknown setting is an error."""
    found = _toml(path)
    where = path.name
    models = tuple(_table(where, name, entry) for name, entry in _take(where, found, "models", dict, {}).items())
    limits = _take(where, found, "limits", dict, {})
    known: dict[str, Any] = {f.name: type(f.default) for f in fields(Limits)}
    for name, value in limits.items():
        if name not in known:
            raise FormatError(where, f"is unknown; the limits are {', '.join(known)}", field=f"limits.{name}")
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise FormatError(where, "must be a number above 0", field=f"limits.{name}", given=value)
    result: dict[str, Any] = {"models": models, "limits": Limits(**{n: known[n](v) for n, v in limits.items()})}
    references = _take(where, found, "drift_references", dict, {})
    if references:
        result["drift_references"] = tuple((name, Path(str(file))) for name, file in references.items())
    for name, kind in (
        ("host", str),
        ("port", int),
        ("allow_pull", bool),
        ("strict", bool),
        ("collector", str),
        ("drift_webhook", str),
        ("drift_false_alarms", float),
    ):
        if name in found:
            result[name] = _take(where, found, name, kind, None)
    for name in ("allowed_hosts", "allowed_origins", "image_hosts"):
        if name in found:
            result[name] = tuple(map(str, _take(where, found, name, list, [])))
    for name, convert in (
        ("keep_alive", seconds),
        ("budget", size_bytes),
        ("lora_dir", Path),
        ("training_dir", Path),
        ("lab_dir", Path),
        ("prefix_dir", Path),
        ("registry", Path),
        ("prefix_size", size_bytes),
        ("socket", Path),
        ("tls_cert", Path),
        ("tls_key", Path),
        ("api_key_file", lambda given: read_keys(Path(given))),
    ):
        if name in found:
            target = _TARGETS.get(name, name)
            result[target] = convert(found.pop(name))
    if found:
        raise FormatError(where, f"unknown setting {', '.join(sorted(found))}")
    return result


def _toml(path: Path) -> dict[str, Any]:
    reader = next((name for name in ("tomllib", "tomli") if find_spec(name)), None)  # tomllib came with Python 3.11
    if reader is None:
        raise NotFoundError("serve", "reading TOML needs Python 3.11 or tomli", advice="run: pip install tomli")
    try:
        if path.stat().st_size > MAX_TOML:
            raise FormatError(path.name, f"is over {MAX_TOML >> 20} MiB, too large for a settings file")
        found: dict[str, Any] = import_module(reader).loads(path.read_text(encoding="utf-8"))
        return found
    except OSError as error:
        raise NotFoundError("serve", f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise FormatError(path.name, f"is not valid TOML: {error}") from None


def _take(where: str, table: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    value = table.pop(name, default)
    if not isinstance(value, kind):
        raise FormatError(where, f"must be {_TYPES[kind]}", field=name, given=value)
    return value


def _table(where: str, name: str, entry: Any) -> ModelSpec:
    """One `[models.NAME]` table, or `NAME = "source"`."""
    if isinstance(entry, str):
        return ModelSpec(name, entry)
    if not isinstance(entry, dict) or not isinstance(entry.get("source"), str):
        raise FormatError(where, "needs a source: a model name, a folder or a file", field=f"models.{name}")
    options = {key: value for key, value in entry.items() if key not in ("source", "keep_alive", "preload")}
    for key, value in options.items():
        if key not in MODEL_OPTIONS:
            known = ", ".join(MODEL_OPTIONS)
            raise FormatError(where, f"is unknown; the options are {known}", field=f"models.{name}.{key}")
        if type(value) not in MODEL_OPTIONS[key]:
            kinds = " or ".join(_TYPES[kind] for kind in MODEL_OPTIONS[key])
            raise FormatError(where, f"must be {kinds}", field=f"models.{name}.{key}", given=value)
    keep_alive = entry.get("keep_alive")
    return ModelSpec(
        name,
        entry["source"],
        options,
        None if keep_alive is None else seconds(keep_alive),
        bool(entry.get("preload", False)),
    )
