"""When a server has nothing left to do, and waiting for that and other things."""

import time
from collections.abc import Callable

from weft.serve import BackgroundServer


def idle(server: BackgroundServer) -> bool:
    """Whether no request is under way or has a place, and no engine holds a page."""
    serving = server.app.serving
    if serving.tracking.calls or any((*serving.places.under_way.values(), *serving.queues.under_way.values())):
        return False
    runners = [entry.runner for entry in server.app.serving.models if entry.runner is not None]
    engines = [runner.engine.engine.stats() for runner in runners if hasattr(runner, "engine")]
    return all(not stats.running and not stats.waiting and stats.pages == stats.free_pages for stats in engines)


def wait_for(condition: Callable[[], object], seconds: float = 5.0) -> float:
    """Seconds until `condition` holds."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, "it never came"
        time.sleep(0.002)
    return time.monotonic() - started
