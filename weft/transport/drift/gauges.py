"""What a watch tells others: gauges for Prometheus, and a webhook."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import Request, urlopen

from weft.transport.drift.watching import Detector, Signal


def gauges_text(signal: Signal | None, detector: Detector) -> str:
    """The detector's state for Prometheus."""
    state = "warming" if signal is None else signal.state
    numbers = {
        "weft_drift_vectors_seen": detector.seen,
        "weft_drift_evidence": detector.evidence,
        "weft_drift_alarm_height": detector.height,
        "weft_drift_alarm": int(detector.evidence >= detector.height),
        "weft_drift_divergence": detector.last_divergence,
        "weft_drift_last_p": detector.last_p,
    }
    lines = [f"# TYPE {name} gauge\n{name} {value}" for name, value in numbers.items() if value is not None]
    return "\n".join([*lines, f'# TYPE weft_drift_state gauge\nweft_drift_state{{state="{state}"}} 1']) + "\n"


def serve_gauges(port: int, detector: Detector, note: Callable[[str], None]) -> dict[str, Any]:
    """A server of /metrics on this machine, in a thread: set its "signal", and shut its "server" down."""
    held: dict[str, Any] = {"signal": None}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path.split("?")[0] == "/metrics"
            body = gauges_text(held["signal"], detector).encode() if known else b"see /metrics\n"
            self.send_response(200 if known else 404)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    note(f"gauges at http://127.0.0.1:{server.server_address[1]}/metrics")
    held["server"] = server
    return held


def tell(url: str, signal: Signal, note: Callable[[str], None], **about: Any) -> None:
    """Tell a webhook, with what else there is to say about the stream; the watch goes on where that fails."""
    body = json.dumps({"event": "drift", **about, **vars(signal)}).encode()
    try:
        with urlopen(Request(url, body, {"content-type": "application/json"}), timeout=10):
            pass
    except (OSError, ValueError) as error:
        note(f"the webhook was not reached: {error}")
