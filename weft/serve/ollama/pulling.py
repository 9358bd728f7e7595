"""POST /api/pull: download a model in a process of its own, which a client that disconnects ends."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from collections.abc import AsyncIterator
from typing import Any

from weft.errors import WeftError
from weft.serve.http.events import line
from weft.serve.http.faults import Fault, invalid, message_of, without_folders
from weft.serve.http.routes import Answer, Context, Json, Stream
from weft.serve.models.outline import outline_of
from weft.serve.models.pool import LATEST, Entry
from weft.serve.ollama.chat import LINES, error_line
from weft.serve.ollama.schemas import PullRequest
from weft.serve.settings import ModelSpec

# What may be downloaded: a catalogue name, or org/name[:tag][@revision] of the hub; never a path.
_FETCHABLE = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?(?::[\w.-]+)?(?:@[\w.-]+)?", re.ASCII)
LAST_WORDS = 4096  # bytes of what a failed process wrote that are kept

log = logging.getLogger("weft.serve")


async def pull(context: Context, body: PullRequest) -> Answer:
    """Succeed at once for a model that is served; download others, if the operator allows it, and serve them."""
    given = (body.model or body.name or "").removesuffix(LATEST)
    if given not in context.serving.models.entries:
        if not context.serving.settings.allow_pull:
            raise Fault(403, "this server does not download models: run `weft pull`, or start it with --allow-pull")
        if not _FETCHABLE.fullmatch(given) or ".." in given:
            raise invalid("is not a model name: give a catalogue name, or org/name of the hub", "model")
    if body.stream is False:
        async for _ in _fetch(context, given):
            pass
        return Json({"status": "success"})
    return Stream(_fetch(context, given), error_line, LINES)


async def _fetch(context: Context, name: str) -> AsyncIterator[bytes]:
    models = context.serving.models
    if name not in models.entries:
        yield line({"status": "pulling manifest"})
        async for progress in _download(name):
            yield line(progress)
        yield line({"status": "reading the model"})
        spec = ModelSpec(name, name)
        try:
            models.add(Entry(spec, await asyncio.to_thread(outline_of, spec)))
        except WeftError as error:
            log.error("model not served", extra={"model": name, "error": str(error)})
            what = f"{name} was downloaded, but cannot be served: {message_of(error)}"
            raise Fault(400, what, code="model_not_served") from error
    yield line({"status": "success"})


async def _download(name: str) -> AsyncIterator[dict[str, Any]]:
    """The progress of `weft pull` in Ollama's shape; a fault with the reason if it fails."""
    command = (sys.executable, "-m", "weft", "pull", "--json", name)
    quiet, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, stdin=quiet, stdout=pipe, stderr=pipe)
    assert child.stdout is not None and child.stderr is not None
    words = asyncio.ensure_future(_last_words(child.stderr))
    reason = ""
    try:
        async for text in child.stdout:
            said = json.loads(text)
            reason = said.get("error", reason)
            if "file" in said:
                digest = said["digest"]
                shown = digest.removeprefix("sha256:")[:12] if digest else said["file"]
                known = {"digest": digest or said["file"], "total": said["total"], "completed": said["completed"]}
                yield {
                    "status": f"pulling {shown}",
                    **{key: value for key, value in known.items() if value is not None},
                }
        code = await child.wait()
        if code != 0:
            log.error("model not downloaded", extra={"model": name, "error": reason or await words})
            what = without_folders(reason) or f"the download ended with code {code}; the server's log has the details"
            status = 404 if code == 2 else 502
            raise Fault(
                status, f"{name} could not be downloaded: {what}", kind="not_found_error", code="not_downloaded"
            )
    finally:
        words.cancel()
        if child.returncode is None:
            child.terminate()
            await child.wait()


async def _last_words(pipe: asyncio.StreamReader) -> str:
    """Read all that a process writes, so that it never waits, and keep the end."""
    kept = b""
    while found := await pipe.read(LAST_WORDS):
        kept = (kept + found)[-LAST_WORDS:]
    return kept.decode(errors="replace")
