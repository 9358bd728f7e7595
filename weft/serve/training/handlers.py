"""GET, POST and DELETE of /v1/training/runs: adapters trained on rows that the client sends."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from weft.errors import WeftError
from weft.serve.http.faults import Fault, blaming, invalid
from weft.serve.http.routes import Answer, Context, Json
from weft.serve.training.runs import Run, Runs
from weft.serve.training.schemas import RegisterRequest, RunRequest

MEASURED = ("loss", "accuracy", "exact")  # what a version is registered with


async def runs(context: Context, _: None) -> Answer:
    """All runs, newest first, without their steps; whether this server trains."""
    training = context.serving.training
    if training is None:
        return Json({"enabled": False, "runs": []})
    found = await asyncio.to_thread(lambda: [_summary(training, run) for run in training.all()])
    return Json({"enabled": True, "runs": found})


async def start(context: Context, body: RunRequest) -> Answer:
    """Start a run. One is under way at a time."""
    training = _training(context)
    entry, _ = context.serving.models.find(body.model)
    if entry.kind != "generate":
        raise invalid(
            f"is {entry.name}, which does not generate text; adapters are trained for models that do", "model"
        )
    if not body.rows[0]:
        raise invalid("must have fields: text, prompt and completion, or messages", "rows[0]")
    settings = {name: value for name, value in msgspec.to_builtins(body.settings).items() if value is not None}
    about = {"model": entry.name, "source": entry.spec.source, "kind": body.kind, "settings": settings}

    def made() -> dict[str, Any]:
        training.check_free()
        run = training.create(body.name, body.rows, body.held_out, **about)
        run.start()
        return _whole(training, run)

    return Json(await asyncio.to_thread(made))


async def show(context: Context, _: None) -> Answer:
    """A run with its steps; `after=N` leaves out the first N."""
    training = _training(context)
    after = context.query.get("after", "0")
    if not after.isdecimal():
        raise invalid("must be a whole number", "after")
    run = training.get(context.path["name"])
    found = await asyncio.to_thread(_whole, training, run, int(after))
    registry = {"registry": context.serving.following is not None, "registered": run.registered}
    return Json({**found, **registry}, large=True)


async def stop(context: Context, _: None) -> Answer:
    """Let a run end its step and save, to be resumed."""
    training = _training(context)
    run = training.get(context.path["name"])
    if run.pid is None:
        raise Fault(409, f"run {run.name} is {run.state}, not running", code="not_running")
    run.stop()
    return Json(_summary(training, run))


async def resume(context: Context, _: None) -> Answer:
    """Go on with a run that was stopped, or begin again one that failed before its first step was saved."""
    training = _training(context)
    run = training.get(context.path["name"])
    training.check_free()
    if run.state == "done":
        raise Fault(409, f"run {run.name} is done; start another", code="already_done")
    await asyncio.to_thread(run.start, resume=run.state == "stopped")
    return Json(_summary(training, run))


async def evaluate(context: Context, _: None) -> Answer:
    """Begin to measure the base and the adapter on the rows that were held out; the run then shows how both did."""
    training = _training(context)
    run = training.get(context.path["name"])
    training.evaluate(run)
    return Json(_summary(training, run))


async def load(context: Context, _: None) -> Answer:
    """Load the run's adapter into its base, under the run's name; an older one of that name is replaced."""
    training = _training(context)
    run = training.get(context.path["name"])
    if run.state != "done":
        raise Fault(409, f"run {run.name} has no adapter yet: it is {run.state}", code="not_done")
    models = context.serving.models
    entry, _unused = models.find(run.about["model"])
    try:
        adapter = await models.load_adapter(entry, run.name, run.adapter, replace=run.name in entry.adapters)
    except WeftError as error:
        raise blaming("name", error, code="adapter_not_loaded") from None
    return Json({"lora_name": adapter.name, "model": entry.name, "adapter_generation": adapter.generation})


async def register(context: Context, body: RegisterRequest) -> Answer:
    """Keep the adapter as a version in the server's registry, with its base, its data and what was measured."""
    training = _training(context)
    run = training.get(context.path["name"])
    following = context.serving.following
    if following is None:
        raise Fault(403, "this server has no registry; start it with --registry FOLDER", code="registry_off")
    if run.state != "done":
        raise Fault(409, f"run {run.name} has no adapter yet: it is {run.state}", code="not_done")
    about, measured = run.about, (run.evaluation() or {}).get("adapter", {})
    metrics = {name: measured[name] for name in MEASURED if name in measured}
    data = {name: about[name] for name in ("rows", "held_out", "settings", "kind")}
    given = {"kind": "adapter", "base": about["source"], "data": data, "evaluations": metrics}
    found = await asyncio.to_thread(following.registry.add, body.name or run.name, run.adapter, body.version, **given)
    run.note_version(found.name, found.version)
    return Json(found.as_dict())


async def delete(context: Context, _: None) -> Answer:
    """Remove a run and its adapter from the disk; a loaded adapter is unloaded."""
    training = _training(context)
    run = training.get(context.path["name"])
    if any(run.name in entry.adapters and entry.adapters[run.name] == run.adapter for entry in context.serving.models):
        await context.serving.models.unload_adapter(run.name)
    await asyncio.to_thread(training.delete, run)
    return Json({"name": run.name, "deleted": True})


def _training(context: Context) -> Runs:
    found = context.serving.training
    if found is None:
        raise Fault(403, "this server does not train; start it with --training-dir DIR", code="training_off")
    return found


def _summary(training: Runs, run: Run) -> dict[str, Any]:
    about = run.about
    shown = {name: about[name] for name in ("name", "model", "kind", "settings", "rows", "held_out", "created")}
    state = "evaluating" if training.evaluating == run.name else run.state
    return {**shown, "state": state, "error": run.error if state == "failed" else None}


def _whole(training: Runs, run: Run, after: int = 0) -> dict[str, Any]:
    steps = run.steps(after)
    total = steps[-1]["steps"] if steps else None
    more = {"steps": steps, "after": after, "total": total, "evaluation": run.evaluation(), "samples": run.samples()}
    return {**_summary(training, run), **more}
