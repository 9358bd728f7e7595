"""weft stop: stop servers on this machine, after they have answered their requests."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import click

from weft.cli import screen
from weft.errors import BusyError, NotFoundError


@click.command()
@click.argument("which", metavar="[PORT|SOCKET]", required=False)
@click.option("--all", "everyone", is_flag=True, help="Stop all servers on this machine.")
@click.option("--timeout", type=float, default=45.0, show_default=True, help="Seconds to wait for the server to end.")
def command(which: str | None, everyone: bool, timeout: float) -> None:
    """Stop a server on this machine.

    The server finishes the requests it is working on, accepts no new ones, and ends.

    \b
    Examples:
      weft stop
      weft stop 8000
      weft stop --all
    """
    from weft.serve import presence

    known = {which, str(Path(which).resolve())} if which else None
    found = [one for one in presence.running() if known is None or one.where in known]
    if not found:
        what = f"no server is running at {which}" if which else "no server is running"
        raise NotFoundError("stop", what, advice="`weft ps` lists the servers of this machine")
    if len(found) > 1 and not everyone:
        places = ", ".join(one.where for one in found)
        raise click.UsageError(f"several servers are running; give one of {places}, or --all")
    for one in found:
        os.kill(one.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    for one in found:
        while presence.alive(one):
            if time.monotonic() > deadline:
                raise BusyError(
                    "stop",
                    f"the server at {one.where} is still answering requests after {timeout:g} s",
                    advice="run `weft stop` again to end it at once",
                )
            time.sleep(0.05)
        screen.note(f"stopped {one.url}")
