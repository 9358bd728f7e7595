"""How much memory is free (the machine's, or what the cgroup leaves), and how much of it the KV cache and a mixture's
experts get."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft import flags
from weft.errors import InputError, MemoryPlanError, UnsupportedError
from weft.frozen import frozen
from weft.runtime.paged.pages import PAGE_TOKENS, pages_for
from weft.weights.files import MadeView

if TYPE_CHECKING:
    from weft.backends.base import Backend, WantedWeight
    from weft.runtime.checkpoint import Checkpoint
    from weft.runtime.prepared import Prepared

SHARE = 0.9  # a plan may use this much of what is free
STATE_SHARE = 0.25  # a state that nobody sized may use this much of what weights and work then leave
STATE_SEQUENCES = 16  # and has no more than so many whole contexts
STATE_CONTEXT = 8192  # which count as so many tokens where they are longer: few requests fill a long one
CONTEXT_SHARE = 0.5  # a context that nobody chose may use this much of what weights and work leave
EXPERT_SHARE = 0.75  # experts that do not all fit may use this much of what the other weights and work leave
LEAST_CONTEXT = 2048  # less than that is no default: most prompts would not fit
UNKNOWN_CONTEXT = 32_768  # where the free memory is not known
UNKNOWN = 1 << 62


@frozen
class FreeMemory:
    available_bytes: int
    reason: str


def free_memory() -> FreeMemory:
    """Bytes a load may count on, and where the number comes from."""
    available, reason = _available_bytes(), "available memory of the machine"
    left = _cgroup_left()
    if left is not None and left < available:
        available, reason = left, "what the cgroup's limit leaves"
    return FreeMemory(available, reason)


def _available_bytes() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return UNKNOWN  # never a reason to refuse


def _cgroup_left() -> int | None:
    root = Path("/sys/fs/cgroup")
    for limit_file, used_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            limit = (root / limit_file).read_text().strip()
            if limit == "max" or int(limit) >= 1 << 60:
                continue
            return max(0, int(limit) - int((root / used_file).read_text()))
        except (OSError, ValueError):
            continue
    return None


@frozen
class ExpertPlan:
    """The memory for the experts of a mixture, None where all of them stay, and why."""

    nbytes: int | None
    reason: str
    as_asked: bool = False


def plan_experts(
    all_bytes: int,
    least_bytes: int,
    beside_bytes: int,
    state_bytes: int,
    *,
    asked: int | None = None,
    free: FreeMemory | None = None,
) -> ExpertPlan:
    """The one rule for how much of `all_bytes` of experts stays in memory: what was `asked` for; else all of them, if
    `beside_bytes` of other weights and work and the least that the state takes fit beside them; else three quarters of
    what those weights and work leave, or less if the state needs more than the rest.

    At least `least_bytes`, which is what one layer may need at a time.
    """
    if asked is not None:
        if asked >= all_bytes:
            return ExpertPlan(None, "all of them, as asked for")
        if asked >= least_bytes:
            return ExpertPlan(asked, "as asked for", as_asked=True)
        return ExpertPlan(least_bytes, f"the least that the model runs with; {asked} bytes were asked for")
    free = free or free_memory()
    left = int(SHARE * free.available_bytes) - beside_bytes
    if all_bytes + state_bytes <= left:
        return ExpertPlan(None, "all of them fit into memory")
    chosen = max(least_bytes, min(int(EXPERT_SHARE * left), left - state_bytes))
    return ExpertPlan(chosen, f"they do not fit into {free.reason}, which is {free.available_bytes / 1e9:.2f} GB")


@frozen
class ContextPlan:
    """The longest sequence in tokens, and why."""

    tokens: int
    reason: str

    def within(self, pages: int | None, *, asked: int | None) -> ContextPlan:
        """At most what so many pages hold; MemoryPlanError where more was asked for."""
        if pages is None or self.tokens <= pages * PAGE_TOKENS:
            return self
        if asked is not None:
            what = f"the device holds {pages * PAGE_TOKENS} tokens of a layer in one piece"
            raise MemoryPlanError("load", what, field="context", given=asked, advice="give a smaller context")
        return ContextPlan(max(1, pages * PAGE_TOKENS), "what the device holds of a layer in one piece")


def plan_context(
    page_bytes: int,
    positions: int,
    beside_bytes: int,
    *,
    asked: int | None = None,
    kv_tokens: int | None = None,
    kv_bytes: int | None = None,
    free: FreeMemory | None = None,
) -> ContextPlan:
    """The one rule for the longest sequence: what was `asked` for; else all that the model reads, its `positions`, if
    the KV cache that was asked for holds it, or else half of the memory that `beside_bytes` of weights and work leave.

    MemoryPlanError where not even LEAST_CONTEXT tokens fit. Memory is taken when a page is first written, so a long
    context that is not used costs nothing.
    """
    if asked is not None:
        return ContextPlan(asked, "as asked for")
    whole = ContextPlan(positions, "all that the model reads")
    if kv_tokens is not None:
        return whole if kv_tokens >= positions else ContextPlan(max(1, kv_tokens), "kv_tokens")
    free = free or free_memory()
    if kv_bytes is not None:
        room, reason = kv_bytes, "kv_bytes"
    elif free.available_bytes >= UNKNOWN:
        return whole if positions <= UNKNOWN_CONTEXT else ContextPlan(UNKNOWN_CONTEXT, "what is free is not known")
    else:
        room = int(CONTEXT_SHARE * max(0, int(SHARE * free.available_bytes) - beside_bytes))
        reason = f"what fits into {CONTEXT_SHARE:.0%} of what the model leaves of {free.reason}"
    fits = room // page_bytes * PAGE_TOKENS
    if fits >= positions:
        return whole
    least = min(positions, LEAST_CONTEXT)
    if fits < least and kv_bytes is None:
        raise MemoryPlanError(
            "load",
            f"not even a context of {least} tokens fits: it takes {pages_for(least) * page_bytes / 1e9:.2f} GB, and "
            f"{CONTEXT_SHARE:.0%} of what the model leaves of {free.reason} is {room / 1e9:.2f} GB",
            advice="free some memory, or give a smaller context (--context, WEFT_CONTEXT), a narrower kv_dtype or a "
            "smaller quantisation",
        )
    return ContextPlan(max(1, fits), f"{reason}; the model reads {positions}")


def least_pages(
    page_bytes: int, positions: int, *, asked: int | None, kv_tokens: int | None, kv_bytes: int | None
) -> int:
    """How many pages the KV cache has at least: those that were asked for, or of a context that is worth loading, and
    as many again, since a context that nobody chose takes half of what is left."""
    if kv_bytes is not None:
        return kv_bytes // page_bytes
    if kv_tokens is not None or asked is not None:
        return pages_for(max(kv_tokens or 1, asked or 1))
    return 2 * pages_for(min(positions, LEAST_CONTEXT))


@frozen
class StatePlan:
    """How many pages the KV cache has, and why."""

    pages: int
    reason: str

    def within(self, pages: int | None) -> StatePlan:
        """At most so many pages."""
        if pages is None or self.pages <= pages:
            return self
        return StatePlan(pages, "what the device holds of a layer in one piece")


def plan_state(
    page_bytes: int,
    context: int,
    beside_bytes: int,
    *,
    kv_tokens: int | None = None,
    kv_bytes: int | None = None,
    free: FreeMemory | None = None,
) -> StatePlan:
    """How many pages the KV cache gets beside `beside_bytes` of weights and work: at least one whole context.

    With `kv_tokens` or `kv_bytes`, as many as asked for. Otherwise 16 whole contexts, of STATE_CONTEXT tokens where
    they are longer, so that requests rarely wait for pages and prefixes stay cached, but at most a quarter of the
    memory that is left. The system provides memory when a page is first written, so pages that are never used cost
    nothing; all of them in use must still fit.
    """
    least = pages_for(context)
    if kv_tokens is not None and kv_bytes is not None:
        raise InputError("load", "kv_tokens and kv_bytes both set the size of the KV cache", advice="give one of them")
    for name, given in (("kv_tokens", kv_tokens), ("kv_bytes", kv_bytes)):
        if given is not None and (type(given) is not int or given < 1):
            raise InputError("load", "must be a whole number of at least 1", field=name, given=given)
    if kv_tokens is not None:
        return StatePlan(max(least, pages_for(kv_tokens)), "kv_tokens, at least one context")
    if kv_bytes is not None:
        return _within(kv_bytes, page_bytes, least, context)
    free = free or free_memory()
    if free.available_bytes >= UNKNOWN:
        return StatePlan(2 * least, "two contexts: what is free is not known")
    left = max(0, int(SHARE * free.available_bytes) - beside_bytes)
    share = int(STATE_SHARE * left) // page_bytes
    wanted = max(least, STATE_SEQUENCES * pages_for(min(context, STATE_CONTEXT)))
    if share >= wanted:
        times = f"{STATE_SEQUENCES} contexts" if context <= STATE_CONTEXT else f"{wanted * PAGE_TOKENS} tokens"
        return StatePlan(wanted, times)
    if share > least:
        return StatePlan(share, f"{STATE_SHARE:.0%} of what the model leaves of {free.reason}")
    return StatePlan(least, f"one context, the least; more than {STATE_SHARE:.0%} of {free.reason}")


def _within(kv_bytes: int, page_bytes: int, least: int, context: int) -> StatePlan:
    pages = kv_bytes // page_bytes
    if pages < least:
        raise MemoryPlanError(
            "load",
            f"kv_bytes {kv_bytes} hold {pages * PAGE_TOKENS} tokens, one context is {context} and takes "
            f"{least * page_bytes}. Give more, a smaller context or a narrower kv_dtype",
        )
    return StatePlan(pages, "kv_bytes")


@frozen
class Experts:
    """The stacks of experts of a model that can be read from its files when they are needed.

    `all_bytes` are those of all stacks; `least_bytes` those of one stack of each shape and type, which is what a step
    may need at a time. `made` says that there are others, which are rearranged as a whole when they are loaded.
    """

    names: frozenset[str]
    all_bytes: int
    least_bytes: int
    made: bool = False

    def plan(
        self, asked: int | None, beside_bytes: int, state_bytes: int, *, free: FreeMemory | None = None
    ) -> ExpertPlan:
        """How much of them stays in memory: see `plan_experts`. `asked` None is WEFT_EXPERT_MEMORY."""
        if asked is not None and (type(asked) is not int or asked < 0):
            raise InputError("load", "must be a whole number of bytes", field="expert_bytes", given=asked)
        if self.made and asked is not None:
            what = "this checkpoint's experts are rearranged while they are loaded, so all of them stay in memory"
            raise UnsupportedError(
                "load", what, field="expert_bytes", given=asked, advice="load a GGUF file of the model"
            )
        if not self.names:
            return ExpertPlan(None, "none can be read when they are needed")
        asked = flags.get("WEFT_EXPERT_MEMORY") if asked is None else asked
        return plan_experts(self.all_bytes, self.least_bytes, beside_bytes, state_bytes, asked=asked, free=free)

    def announce(self, plan: ExpertPlan) -> None:
        """Log that not all of them stay; a warning where nobody asked for it, because it costs time."""
        import logging

        logging.getLogger("weft").log(
            logging.INFO if plan.as_asked else logging.WARNING,
            "%.2f GB of %.2f GB of experts stay in memory, the others are read when a step needs them: %s",
            *((plan.nbytes or 0) / 1e9, self.all_bytes / 1e9, plan.reason),
        )

    def shown(self, plan: ExpertPlan) -> dict[str, Any]:
        """What `info` says where not all of them stay."""
        if plan.nbytes is None:
            return {}
        return {"expert_bytes": plan.nbytes, "expert_total_bytes": self.all_bytes, "expert_reason": plan.reason}


def experts_of(checkpoint: Checkpoint, backend: Backend, programs: Iterable[Prepared]) -> Experts:
    """The experts that these programs read."""
    stacks = {stack.name: stack for prepared in programs for stack in backend.stacks(prepared.weights)}
    mapped = [stack for stack in stacks.values() if not _made(checkpoint, stack.name)]
    sizes: dict[tuple[Any, ...], int] = {}
    total = 0
    for stack in mapped:
        kind, size = _kind_and_bytes(checkpoint, stack)
        sizes[kind] = max(sizes.get(kind, 0), size)
        total += size
    return Experts(frozenset(stack.name for stack in mapped), total, sum(sizes.values()), len(mapped) < len(stacks))


def _kind_and_bytes(checkpoint: Checkpoint, stack: WantedWeight) -> tuple[tuple[Any, ...], int]:
    count, rows, cols = stack.shape
    stored = checkpoint.stored(stack.name)
    assert stored is not None  # the program was traced with this checkpoint
    return (rows, cols, stored.name, stack.layout), stored.nbytes(count * rows * cols)


def _made(checkpoint: Checkpoint, name: str) -> bool:
    tensor = checkpoint.tensors.get(name)
    return tensor is not None and isinstance(tensor.view, MadeView)


def traced_context(asked: int | None, model: int, settled: int) -> int:
    """The context that a program is traced for. One past `settled` changes the positions of short texts too, so it must
    be asked for."""
    if asked is None:
        return settled
    if not 1 <= asked <= model:
        raise InputError(
            "load", f"must be 1 to {model} tokens, the most this model reads", field="context", given=asked
        )
    return asked
