"""weft ps: the servers on this machine, their models and requests."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from weft.cli import screen

if TYPE_CHECKING:
    from http.client import HTTPConnection

    from weft.serve.presence import Presence

LIMIT = 16 << 20
TIMEOUT_S = 5


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(as_json: bool) -> None:
    """List the servers on this machine and their models.

    The key of a server that needs one is read from WEFT_API_KEY.

    \b
    Examples:
      weft ps
      weft ps --json
    """
    from weft.serve import presence

    servers = [{"url": one.url, "pid": one.pid, **live(one)} for one in presence.running()]
    if as_json:
        screen.print_json(servers)
        return
    if not servers:
        screen.note("no server is running; `weft serve MODEL` starts one")
    for server in servers:
        _print(server)


def live(server: Presence) -> dict[str, Any]:
    """The state of a server, or the error that it or the connection gave."""
    from http.client import HTTPException

    from weft import flags

    key = flags.get("WEFT_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    connection: HTTPConnection | None = None
    try:
        connection = _connection(server)
        connection.request("GET", "/weft/live", headers=headers)
        answer = connection.getresponse()
        if answer.status != 200:
            return {"error": "it needs its key in WEFT_API_KEY" if answer.status == 401 else f"HTTP {answer.status}"}
        found: dict[str, Any] = json.loads(answer.read(LIMIT))
        return found
    except (HTTPException, OSError, ValueError) as error:
        return {"error": f"it does not answer: {error}"}
    finally:
        if connection is not None:
            connection.close()


def _connection(server: Presence) -> HTTPConnection:
    """A connection to a server, on a port or a Unix socket."""
    import socket
    from http.client import HTTPConnection, HTTPSConnection

    if not server.socket:
        host = server.url.partition("://")[2]
        if not server.certificate:
            return HTTPConnection(host, timeout=TIMEOUT_S)
        from weft.serve.certificate import client_context

        return HTTPSConnection(host, timeout=TIMEOUT_S, context=client_context(server.certificate))
    connection = HTTPConnection("localhost", timeout=TIMEOUT_S)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.settimeout(TIMEOUT_S)
    with suppress(OSError):  # the request that follows reports the error
        connection.sock.connect(server.socket)
    return connection


def _print(server: dict[str, Any]) -> None:
    if "error" in server:
        screen.facts([("", server["error"])], title=f"{server['url']}, process {server['pid']}")
        return
    speed, memory = server["tokens_per_second"], screen.size(server["rss"])
    title = f"{server['url']}, process {server['pid']}: {speed:g} tokens/s, {memory}, {server['queue']} waiting"
    rows = [(model["name"], ", ".join(_shown(model))) for model in server["models"]]
    rows += [(r["id"], f"{r['model']}, {r['state']}, {r['output_tokens']} tokens") for r in server["requests"]]
    screen.facts(rows, title=title)


def _shown(model: dict[str, Any]) -> list[str]:
    """What one line says about a model."""
    said = [
        model["kind"],
        model["state"],
        screen.size(model["bytes"]),
        f"{screen.number(model['parameters'])} parameters",
        model["quantisation"],
        f"{model['context']} tokens",
        model["licence"] or "licence unknown",
    ]
    adapters = ", ".join(model["adapters"])
    return [*said, f"adapters: {adapters}"] if adapters else said
