"""How much memory is free (the machine's, or what the cgroup leaves), and how much of it the KV cache gets."""

from pathlib import Path

from weft.errors import InputError, MemoryPlanError
from weft.frozen import frozen
from weft.runtime.paged.pages import PAGE_TOKENS, pages_for

SHARE = 0.9  # a plan may use this much of what is free
STATE_SHARE = 0.25  # a state that nobody sized may use this much of what weights and work then leave
STATE_SEQUENCES = 16  # and has no more than so many whole contexts
STATE_CONTEXT = 8192  # which count as so many tokens where they are longer: few requests fill a long one
CONTEXT_SHARE = 0.5  # a context that nobody chose may use this much of what weights and work leave
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
class ContextPlan:
    """The longest sequence in tokens, and why."""

    tokens: int
    reason: str


def plan_context(
    page_bytes: int,
    positions: int,
    beside_bytes: int,
    *,
    asked: int | None = None,
    kv_tokens: int | None = None,
    kv_bytes: int | None = None,
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
    free = free_memory()
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


@frozen
class StatePlan:
    """How many pages the KV cache has, and why."""

    pages: int
    reason: str


def plan_state(
    page_bytes: int, context: int, beside_bytes: int, *, kv_tokens: int | None = None, kv_bytes: int | None = None
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
    free = free_memory()
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
