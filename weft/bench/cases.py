"""The cases of `weft bench`: the workloads of a case for a model, with their roofs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.bench import workloads
from weft.bench.cost import Ceiling, cost_of, decode_ceiling, token_ceiling
from weft.bench.roofs import Roofs
from weft.bench.workloads import Workload
from weft.embed.recipe import embeds, read_recipe
from weft.errors import InputError, UnsupportedError
from weft.frozen import frozen
from weft.runtime import Checkpoint, Decoder, Encoder, open_checkpoint, plan_threads
from weft.weights.sources import Entry, locate

CONTEXT_UNIT = 256
TASKS = {"decode": "generate", "prefill": "generate", "parallel": "generate", "embed": "embed"}


@frozen
class Sizes:
    """Sizes of the workloads: tokens, sequences, texts."""

    few: int = workloads.FEW
    many: int = workloads.MANY
    prompt: int = 512
    after: int = workloads.PROMPT  # tokens before those that are decoded
    sequences: int = 16
    texts: int = 1000

    def __post_init__(self) -> None:
        if min(self.few, self.prompt, self.after, self.sequences, self.texts) < 1 or self.many <= self.few:
            raise InputError(
                "bench", "sizes must be at least 1, and the second length of --tokens the longer one", given=self
            )


@frozen
class Plan:
    """One case for one model: workloads and roofs. No weights have been read."""

    case: str
    task: str
    model: str  # as the user named it
    path: str
    threads: int
    context: int  # tokens of all sequences, rounded up to CONTEXT_UNIT; 0 for embedders
    workloads: tuple[Workload, ...]
    roofs: Roofs

    @property
    def meanings(self) -> dict[str, str]:
        """A description of each workload."""
        return {workload.name: workload.meaning for workload in self.workloads}

    def loading(self, setting: str, files: str) -> dict[str, Any]:
        """The job that loads the model, the same for every runner."""
        given = {"task": self.task, "model": self.path, "threads": self.threads, "context": self.context}
        return {"do": "load", **given, "setting": setting, "files": files}


def plan(case: str, model: str, *, threads: int | None = None, sizes: Sizes | None = None) -> Plan:
    """The plan of `case` for `model`, a name, a folder or a file. "startup" works for generators and embedders."""
    count = plan_threads(threads).count
    located, sizes, roofs = locate(model), sizes or Sizes(), Roofs(count)
    checkpoint = open_checkpoint(located.path)
    task = TASKS.get(case) or ("embed" if embeds(checkpoint, located.entry) else "generate")
    if task == "embed":
        context, found = 0, _embedding(checkpoint, located.entry, sizes, roofs)
    else:
        context, found = _context(case, sizes), [_generating(case, Decoder(checkpoint, bind=False), sizes, roofs)]
    return Plan(case, task, model, str(located.path), count, context, tuple(found), roofs)


def _context(case: str, sizes: Sizes) -> int:
    needed = {
        "decode": sizes.after + sizes.many,
        "prefill": sizes.prompt + 1,
        "parallel": sizes.sequences * (workloads.PROMPT + workloads.MANY_TOGETHER),
    }
    return -(-needed.get(case, 1) // CONTEXT_UNIT) * CONTEXT_UNIT


def _generating(case: str, decoder: Decoder, sizes: Sizes, roofs: Roofs) -> Workload:
    cost, vocab, own = cost_of(decoder.program), decoder.vocab_size, str(decoder.info["compute"])
    if case == "prefill":
        _check_room(decoder, sizes.prompt + 1)
        each = cost.flops + cost.row_flops / sizes.prompt  # only the last token needs logits
        made = workloads.prefill(vocab, sizes.prompt)
        return replace(made, ceiling=lambda kind: token_ceiling(each, roofs, kind or own))
    together = sizes.sequences if case == "parallel" else 1
    if case == "parallel":
        made = workloads.parallel(vocab, together)
    else:
        made = workloads.decode(vocab, few=sizes.few, many=sizes.many, after=sizes.after)
    _check_room(decoder, workloads.PROMPT + workloads.MANY_TOGETHER if case == "parallel" else sizes.after + sizes.many)
    return replace(made, ceiling=lambda _: decode_ceiling(cost, roofs, together))


def _check_room(decoder: Decoder, tokens: int) -> None:
    if tokens > decoder.max_context:
        raise InputError(
            "bench",
            f"the workload needs {tokens} tokens, and the model reads {decoder.max_context}",
            advice="give fewer with --tokens or --prompt",
        )


def _embedding(checkpoint: Checkpoint, entry: Entry | None, sizes: Sizes, roofs: Roofs) -> list[Workload]:
    if checkpoint.make_tokenizer is None:
        raise UnsupportedError(
            "bench",
            f"{checkpoint.path} has no tokenizer",
            advice="embedding is measured on texts; give a model with one",
        )
    recipe = read_recipe(checkpoint, entry, None)
    encoder = Encoder(recipe.with_dense(checkpoint), recipe.head(recipe.normalise))
    flops = cost_of(encoder.program()).flops

    def tokens_of(text: str) -> int:
        return len(encoder.tokenizer.encode(text))

    def ceiling(kind: str) -> Ceiling | None:
        return token_ceiling(flops, roofs, kind or "f32")

    made = workloads.embedding(tokens_of, encoder.max_tokens, sizes.texts)
    return [made[0], *(replace(workload, ceiling=ceiling) for workload in made[1:])]


def first_job(plan: Plan) -> dict[str, Any]:
    """The first job of a new process, for start-up times: embed a short text, or generate one token."""
    if plan.task == "embed":
        return {"do": "embed", "texts": [workloads.SHORT]}
    return {"do": "decode", "prompt": plan.workloads[0].check["prompt"], "tokens": 1}
