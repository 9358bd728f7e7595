"""The cases of `weft bench`: the workloads of a case for a model, with their roofs."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from weft.bench import workloads
from weft.bench.cost import Ceiling, cost_of, decode_ceiling, token_ceiling
from weft.bench.peers import gpu
from weft.bench.roofs import DeviceRoofs, Roofs
from weft.bench.workloads import Workload
from weft.embed.recipe import embeds, read_recipe
from weft.errors import InputError, UnsupportedError
from weft.frozen import frozen
from weft.runtime import Checkpoint, Decoder, Encoder, open_checkpoint, plan_threads
from weft.train.training import Base
from weft.weights.sources import Entry, locate

CONTEXT_UNIT = 256
TASKS = {"decode": "generate", "prefill": "generate", "parallel": "generate", "embed": "embed", "train": "train"}
SHORTEST, LONGEST = 40, 700  # tokens of the chats that are trained on
PRODUCTS = 2  # of a weight with a token of a training: forwards, and its gradient back to the inputs


@frozen
class Sizes:
    """Sizes of the workloads: tokens, sequences, texts."""

    few: int = workloads.FEW
    many: int = workloads.MANY
    prompt: int = 512
    after: int = workloads.PROMPT  # tokens before those that are decoded
    sequences: int = 16
    texts: int = 1000
    chats: int = 4
    longest: int = LONGEST  # of the chats, in tokens
    remembered: int = 2048  # tokens of the text whose training's memory is measured

    def __post_init__(self) -> None:
        counts = (self.few, self.prompt, self.after, self.sequences, self.texts, self.chats, self.remembered)
        if min(counts) < 1 or self.many <= self.few or self.longest < SHORTEST:
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
    remembered: Plan | None = None  # of training: a step whose memory is measured, in a process of its own

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
    located, sizes, device = locate(model), sizes or Sizes(), gpu()
    roofs = Roofs(count) if device is None else DeviceRoofs(count, copies=device.bandwidth)
    checkpoint = open_checkpoint(located.path)
    task = TASKS.get(case) or ("embed" if embeds(checkpoint, located.entry) else "generate")
    if task == "embed":
        context, found = 0, _embedding(checkpoint, located.entry, sizes, roofs)
    elif task == "train":
        *found, last = _training(checkpoint, Base.open(model), sizes, roofs)
        remembered = Plan(case, "train_memory", model, str(located.path), count, 0, (last,), roofs)
        return Plan(case, task, model, str(located.path), count, 0, tuple(found), roofs, remembered)
    else:
        decoder = Decoder(checkpoint, bind=False)
        context, found = _context(case, sizes), [_generating(case, decoder, sizes, roofs)]
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


def _training(checkpoint: Checkpoint, base: Base, sizes: Sizes, roofs: Roofs) -> list[Workload]:
    """A text of one length, chats of several, and the text whose training's memory is measured."""
    decoder = Decoder(checkpoint, bind=False)
    _check_room(decoder, max(sizes.prompt, sizes.longest, sizes.remembered))
    encoder, cost, rng = base.encoder("assistant"), cost_of(decoder.program), random.Random(5)

    def tokens_of(chat: list[workloads.Message]) -> int:
        return len(encoder.conversation(chat, None, first=0)[0])

    def whole(tokens: int) -> dict[str, list[int]]:
        ids = base.tokenizer.encode_prompt(" ".join(rng.choice(workloads.WORDS) for _ in range(tokens)))
        return {"ids": ids[:tokens], "learnt": [1] * len(ids[:tokens])}

    lengths = workloads.spread(sizes.chats, SHORTEST, sizes.longest)
    chats = [encoder.conversation(workloads.chat_of(rng, tokens_of, tokens), None, first=0) for tokens in lengths]
    talks = [{"ids": ids, "learnt": [int(one) for one in learnt]} for ids, learnt in chats]
    between = (
        f"{sizes.chats} chats of {len(talks[-1]['ids'])} to {len(talks[0]['ids'])} tokens, of which answers are learnt"
    )
    made = [
        (f"train_{sizes.prompt}", f"a step of LoRA on a text of {sizes.prompt} tokens", [whole(sizes.prompt)]),
        ("train_ragged", f"a step of LoRA on {between}", talks),
        (f"train_{sizes.remembered}", f"a step on a text of {sizes.remembered} tokens", [whole(sizes.remembered)]),
    ]

    def roofed(name: str, meaning: str, lessons: list[dict[str, list[int]]]) -> Workload:
        tokens, learnt = (
            sum(map(count, (one[key] for one in lessons))) for key, count in (("ids", len), ("learnt", sum))
        )
        flops = PRODUCTS * (cost.flops + cost.row_flops * learnt / tokens)
        return replace(
            workloads.learning(name, meaning, lessons), ceiling=lambda kind: token_ceiling(flops, roofs, kind)
        )

    return [roofed(*one) for one in made]


def first_job(plan: Plan) -> dict[str, Any]:
    """The first job of a new process: embed a short text, make a step of training, or generate one token."""
    if plan.task == "train_memory":
        return plan.workloads[0].check
    if plan.task == "embed":
        return {"do": "embed", "texts": [workloads.SHORT]}
    return {"do": "decode", "prompt": plan.workloads[0].check["prompt"], "tokens": 1}
