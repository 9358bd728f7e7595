"""Logs on standard error: a JSON object or a line of text for each event. Never prompts, answers or keys."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

_KNOWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}


def facts_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields given with `extra`."""
    return {name: value for name, value in record.__dict__.items() if name not in _KNOWN}


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        said = {"time": f"{stamp}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        said |= {"event": record.getMessage(), **facts_of(record)}
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False, default=str)


class Lines(logging.Formatter):
    """A readable line."""

    def format(self, record: logging.LogRecord) -> str:
        facts = facts_of(record)
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = f"{stamp} {record.getMessage()} " + " ".join(f"{k}={v}" for k, v in facts.items() if v != "")
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text.rstrip()


def configure(style: str = "text", level: str = "info") -> None:
    """Write the server's events, and warnings of the HTTP library, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if style == "json" else Lines())
    for name, least in (("weft.serve", level.upper()), ("uvicorn.error", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(least)
        logger.propagate = False
