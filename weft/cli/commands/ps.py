"""weft ps: the servers that run here, their models, and what they are doing."""

from __future__ import annotations

import json
from typing import Any

import click

from weft.cli import screen

LIMIT = 16 << 20


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(as_json: bool) -> None:
    """List the servers on this machine.

    Each with its models and what it is doing. A server with a key is asked with the one in WEFT_API_KEY.

    \b
    Examples:
      weft ps
      weft ps --json
    """
    from weft.serve import presence

    servers = [{"url": one.url, "pid": one.pid, **live(one.url)} for one in presence.running()]
    if as_json:
        screen.print_json(servers)
        return
    if not servers:
        screen.note("no server runs here; `weft serve MODEL` starts one")
    for server in servers:
        _print(server)


def live(url: str) -> dict[str, Any]:
    """What a server says of itself, or why it says nothing."""
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    from weft import flags

    key = flags.get("WEFT_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with urlopen(Request(f"{url}/weft/live", headers=headers), timeout=5) as answer:
            found: dict[str, Any] = json.loads(answer.read(LIMIT))
            return found
    except HTTPError as error:
        return {"error": "its key is needed, in WEFT_API_KEY" if error.code == 401 else f"HTTP {error.code}"}
    except (URLError, OSError, ValueError) as error:
        return {"error": f"it does not answer: {error}"}


def _print(server: dict[str, Any]) -> None:
    if "error" in server:
        screen.facts([("", server["error"])], title=f"{server['url']}, process {server['pid']}")
        return
    speed, memory = server["tokens_per_second"], screen.size(server["rss"])
    title = f"{server['url']}, process {server['pid']}: {speed:g} tokens/s, {memory}, {server['queue']} waiting"
    rows = [(m["name"], f"{m['kind']}, {m['state']}, {screen.size(m['bytes'])}") for m in server["models"]]
    rows += [(r["id"], f"{r['model']}, {r['state']}, {r['output_tokens']} tokens") for r in server["requests"]]
    screen.facts(rows, title=title)
