"""A decoder: a causal language model bound to its weights and states. `run` computes one ragged step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from weft import flags
from weft.backends import Backend, open_backend
from weft.errors import BusyError, FormatError, InputError, MemoryPlanError, TooLongError, UnsupportedError
from weft.models import picture_token
from weft.nn.step import Step
from weft.runtime.adapters import Adapter, Adapters
from weft.runtime.checkpoint import Checkpoint
from weft.runtime.memory import (
    SHARE,
    ContextPlan,
    ExpertPlan,
    Experts,
    FreeMemory,
    StatePlan,
    experts_of,
    free_memory,
    least_pages,
    plan_context,
    plan_state,
    traced_context,
)
from weft.runtime.paged.elements import pick_kv_dtype
from weft.runtime.paged.fingerprint import fingerprint
from weft.runtime.paged.holding import Holding, slots_of
from weft.runtime.paged.pages import PAGE_TOKENS, PagePool, pages_for
from weft.runtime.paged.slots import LEAST_SLOTS, SlotPool, checkpoint_bytes, slots_for
from weft.runtime.programs import Programs, pick_compute
from weft.runtime.steps import build_step, check_step, filled
from weft.runtime.threads import plan_threads

if TYPE_CHECKING:
    import numpy as np

    from weft.backends.base import Executable, TopRows, WantedState
    from weft.graph import Program, Tensor, Trace
    from weft.models import ModelModule
    from weft.nn import Scope
    from weft.runtime.prepared import Facts, Prepared
    from weft.text import Tokenizer

Result = TypeVar("Result")
STEP_TOKENS = 512  # tokens of one step: long prompts are cut into chunks of this many


class Decoder:
    """A causal model: at most `context` tokens per sequence, `kv_tokens` (or what fits `kv_bytes`) in all together.
    `plan_context` and `plan_state` decide what is not given.

    `compute` "int8" rounds activations to int8 before products with quantised weights (the default for them), "bf16"
    rounds activations and weights that are not quantised to bfloat16 (the default for f16 and bf16 matrices, at levels
    with a matrix unit for it: decision 0018), "f16" rounds them to half precision (the default for such matrices at
    levels with half-precision arithmetic: decision 0026), "f32" rounds nothing. `kv_dtype` is one of KV_TYPES
    (paged/elements.py); the default is f32 for f32 checkpoints, bf16 where `compute` rounds (decision 0024), else f16.
    Other threads pack the weights while the caller continues: `ready` waits for them, and so does the first `run`. With
    `bind` False no weight is read and nothing is allocated: `program`, `info` and `memory_plan` work, `run` does not.
    `backend` is a name ("cpu", "reference") or a Backend; `level` and `threads` are for the CPU. `draft_head` None uses
    the model's own head for multi-token prediction where the checkpoint has one (`has_draft_head`), False does not.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        context: int | None = None,
        kv_tokens: int | None = None,
        kv_bytes: int | None = None,
        kv_dtype: str | None = None,
        compute: str | None = None,
        threads: int | None = None,
        level: str | None = None,
        backend: str | Backend | None = None,
        draft_head: bool | None = None,
        expert_bytes: int | None = None,
        bind: bool = True,
    ) -> None:
        self.checkpoint = checkpoint
        self._asked_experts = expert_bytes
        self.thread_plan = plan_threads(threads)
        self.backend = open_backend(backend, level=level, threads=self.thread_plan.count)
        compute = pick_compute(checkpoint, compute, self.backend.fast)
        self._programs = Programs(checkpoint, self.backend, compute=compute)
        self.kv_dtype, self._kv_element = pick_kv_dtype(kv_dtype, checkpoint, compute)
        self._asked_context = self._flagged_context() if context is None else context
        self.has_draft_head = draft_head is not False and self._stores_draft_head
        facts = self.prepared.facts if bind else self._facts()
        self.vocab_size: int = facts["vocab_size"]
        self.max_pages = pages_for(facts["context"])  # the width of page tables
        self._asked_state = {"kv_tokens": kv_tokens, "kv_bytes": kv_bytes}
        self._make_tokenizer = checkpoint.tokenizer
        self.eos_ids = _eos_ids(checkpoint, self.vocab_size)
        self.adapters = Adapters(checkpoint, self.backend, lambda: self.adapted)
        self._variants: dict[tuple[bool, bool], tuple[Prepared, Executable]] = {}
        self.picture_token = picture_token(checkpoint.config)
        self.own_adapter: str | None = None  # for requests that name none
        if bind:
            self._bind()

    @property
    def _stores_draft_head(self) -> bool:
        shown = getattr(self.module, "DRAFT_HEAD", None)
        return shown is not None and self.checkpoint.stored(shown) is not None

    @property
    def _options(self) -> tuple[Any, ...]:
        return ("decoder", self._asked_context, self.kv_dtype, *(["hidden states"] if self.has_draft_head else []))

    def _flagged_context(self) -> int | None:
        """WEFT_CONTEXT, which is for all models: at most what this one reads."""
        flagged: int | None = flags.get("WEFT_CONTEXT")
        return None if flagged is None or self.module.KIND != "decoder" else min(flagged, self.config.positions)

    @cached_property
    def prepared(self) -> Prepared:
        """The planned program of one step, and what binding it needs."""
        return self._programs.prepared(self._options, self._build, self._facts)

    @cached_property
    def _head(self) -> Prepared:
        """The program of the draft head."""
        options = ("draft head", self._asked_context, self.kv_dtype)
        return self._programs.prepared(options, self._build_head, self._facts)

    @property
    def _all_prepared(self) -> list[Prepared]:
        return [self.prepared, self._head] if self.has_draft_head else [self.prepared]

    @property
    def _wanted_states(self) -> list[WantedState]:
        return [state for prepared in self._all_prepared for state in prepared.states]

    def _facts(self) -> dict[str, int]:
        if self.module.KIND != "decoder":
            what = f"models of type {self.checkpoint.model_type} do not generate text"
            raise UnsupportedError("load", what, advice="use weft.Embedder or `weft embed`")
        config = self.config
        with self.checkpoint.naming():
            context = traced_context(self._asked_context, config.positions, config.settled_positions)
        return {"vocab_size": config.vocab_size, "context": context}

    @property
    def _page_and_beside(self) -> tuple[int, int]:
        """Bytes of a page with its part of the checkpoints, and of all that is beside the pages: weights, work, and the
        slots that running requests need at least."""
        page, slot = self._state_bytes
        return page + checkpoint_bytes(page, slot), sum(self._beside_state.values()) + LEAST_SLOTS * slot

    @cached_property
    def _context_plan(self) -> ContextPlan:
        page, beside = self._page_and_beside
        traced = self.prepared.facts["context"]
        plan = plan_context(page, traced, beside, asked=self._asked_context, free=self._free, **self._asked_state)
        return plan.within(self.backend.page_limit(self._wanted_states), asked=self._asked_context)

    @property
    def max_context(self) -> int:
        """The longest sequence, in tokens."""
        return self._context_plan.tokens

    @cached_property
    def _state_plan(self) -> StatePlan:
        page, beside = self._page_and_beside
        plan = plan_state(page, self.max_context, beside, free=self._free, **self._asked_state)
        return plan.within(self.backend.page_limit(self._wanted_states))

    @property
    def _free(self) -> FreeMemory:
        """What is free where the model runs."""
        return free_memory() if self.backend.memory is None else FreeMemory(*self.backend.memory)

    @cached_property
    def pages(self) -> PagePool:
        """The page pool of the KV cache: which sequence holds which page."""
        return PagePool(self._state_plan.pages)

    @cached_property
    def slots(self) -> SlotPool | None:
        """The pool of recurrent slots; None for a model without recurrent state."""
        most = self.backend.slot_limit(self._wanted_states)
        return SlotPool(slots_for(self.pages.count, *self._state_bytes, most)) if self._state_bytes[1] else None

    def _bind(self) -> None:
        self._check_memory()
        self._limit_experts()
        slots = 0 if self.slots is None else self.slots.count
        self._states = self.backend.states(self._wanted_states, self.pages.count, slots)
        self._loading = [self._programs.load(prepared) for prepared in self._all_prepared]
        if self.checkpoint.make_tokenizer is not None and self.thread_plan.count > 1:
            self._make_tokenizer = self.checkpoint.tokenizer_soon()

    def ready(self) -> None:
        """Return when all weights are bound."""
        _ = self._executable

    @cached_property
    def _executable(self) -> Executable:
        executable = self._programs.executable(self.prepared, self._states_of(self.prepared))
        for loading in self._loading:
            loading.finish()
        if self.checkpoint.make_tokenizer is not None:
            _ = self.tokenizer  # its errors are those of loading
        self.checkpoint.release()
        return executable

    def _states_of(self, prepared: Prepared) -> dict[str, Any]:
        return {state.name: self._states.layers[state.name] for state in prepared.states}

    @cached_property
    def _head_executable(self) -> Executable:
        self.ready()
        return self._programs.executable(self._head, self._states_of(self._head))

    @cached_property
    def adapted(self) -> Prepared:
        """The same program with adapters."""
        return self._programs.prepared(self._options, self._build, self._facts, adapters=True)

    def _seeing(self, adapters: bool) -> Prepared:
        """The same program for steps with tokens of pictures, or after them, with adapters or without."""
        options = (*self._options, "vectors")
        return self._programs.prepared(options, self._build_seeing, self._facts, adapters=adapters)

    @cached_property
    def vector_size(self) -> int:
        """Numbers of a vector that a token may be, in place of its id: 0 where the model's file has no way for it."""
        return self.config.hidden_size if "vectors" in self._seeing(False).inputs else 0

    def _variant(self, adapted: bool, seeing: bool) -> tuple[Prepared, Executable]:
        """The program of steps with adapters, or with vectors, or with both."""
        if (adapted, seeing) not in self._variants:
            self.ready()
            prepared = self._seeing(adapted) if seeing else self.adapted
            if seeing:
                self._programs.load(prepared).finish()  # one constant more
            states = {**self._states_of(prepared), **(self.adapters.tables if adapted else {})}
            self._variants[adapted, seeing] = prepared, self._programs.executable(prepared, states)
        return self._variants[adapted, seeing]

    @property
    def module(self) -> ModelModule:
        """The file of the model's type."""
        return self._programs.module

    @property
    def config(self) -> Any:
        """An instance of the model's Config."""
        return self._programs.config

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self._make_tokenizer()

    @property
    def program(self) -> Program:
        """The planned program of one step."""
        return self.prepared.program

    def _build_seeing(self, trace: Trace, w: Scope, facts: Facts) -> Mapping[str, Tensor]:
        return self._build(trace, w, facts, seeing=True)

    def _build(self, trace: Trace, w: Scope, facts: Facts, seeing: bool = False) -> Mapping[str, Tensor]:
        step = self._traced(trace, facts, vectors=seeing, seeing=seeing)
        if not self.has_draft_head:
            return {"logits": self.module.forward(w, self.config, step)}
        logits, hidden = self.module.forward_hidden(w, self.config, step)
        return {"logits": logits, "hidden": hidden}

    def _build_head(self, trace: Trace, w: Scope, facts: Facts) -> Mapping[str, Tensor]:
        logits, hidden = self.module.draft(w, self.config, self._traced(trace, facts, vectors=True))
        return {"logits": logits, "hidden": hidden}

    def _traced(self, trace: Trace, facts: Facts, *, vectors: bool, seeing: bool = False) -> Step:
        from weft.nn.step import TracedStep

        context, size = facts["context"], self.config.hidden_size if vectors else 0
        pages, dtype = pages_for(context), self._kv_element
        return TracedStep(trace, context=context, max_pages=pages, kv_dtype=dtype, vectors=size, seeing=seeing)

    def memory_plan(self) -> dict[str, int]:
        """Bytes of weights, states (all pages and slots in use) and working memory of a full step."""
        return {**self._beside_state, "kv": self._all_state_bytes}

    @property
    def _all_state_bytes(self) -> int:
        page, slot = self._state_bytes
        return page * self.pages.count + slot * (0 if self.slots is None else self.slots.count)

    @property
    def _work_bytes(self) -> int:
        return self.prepared.work_bytes(T=STEP_TOKENS, B=1, L=1) + 4 * self.vocab_size

    @cached_property
    def _experts(self) -> Experts:
        return experts_of(self.checkpoint, self.backend, self._all_prepared)

    @cached_property
    def _expert_plan(self) -> ExpertPlan:
        beside = self.checkpoint.size_bytes - self._experts.all_bytes + self._work_bytes
        page, slot = self._state_bytes
        pages = least_pages(page, self.prepared.facts["context"], asked=self._asked_context, **self._asked_state)
        return self._experts.plan(self._asked_experts, beside, pages * page + LEAST_SLOTS * slot, free=self._free)

    def _limit_experts(self) -> None:
        plan = self._expert_plan
        if plan.nbytes is not None:
            self._experts.announce(plan)
            self._programs.limit_experts(plan.nbytes, self._experts.names)

    @property
    def _beside_state(self) -> dict[str, int]:
        stay = self._expert_plan.nbytes
        missing = 0 if stay is None else self._experts.all_bytes - stay
        return {"weights": self.checkpoint.size_bytes - missing, "work": self._work_bytes}

    def _check_memory(self) -> None:
        plan, free = self.memory_plan(), self._free
        if sum(plan.values()) > SHARE * free.available_bytes:
            parts = ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in plan.items())
            raise MemoryPlanError(
                "load",
                f"the model does not fit into memory: {parts}; {free.reason} is {free.available_bytes / 1e9:.2f} GB. "
                "Give a smaller context or kv_tokens, a narrower kv_dtype, or a smaller quantisation",
            )

    @property
    def info(self) -> dict[str, Any]:
        return {
            **self._programs.info,
            "weight_bytes": self._programs.weight_bytes,
            "kv_dtype": self.kv_dtype,
            "kv_bytes": self._all_state_bytes,
            "kv_tokens": PAGE_TOKENS * self.pages.count,
            "kv_reason": self._state_plan.reason,
            **self._experts.shown(self._expert_plan),
            **({"slots": self.slots.count, "slot_bytes": self.slot_bytes} if self.slots is not None else {}),
            "context": self.max_context,
            "context_reason": self._context_plan.reason,
            "vocab_size": self.vocab_size,
            "eos_ids": sorted(self.eos_ids),
        }

    @property
    def expert_counts(self) -> Mapping[str, int]:
        """Where not all experts stay in memory: hits, misses, resident, bytes and budget (see backends.base.Weights);
        else nothing."""
        return self._programs.expert_counts

    @cached_property
    def _state_bytes(self) -> tuple[int, int]:
        return self.backend.state_bytes(self._wanted_states)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of the state, all layers together."""
        return self._state_bytes[0]

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot, all layers together; 0 for a model without recurrent state."""
        return self._state_bytes[1]

    def read_page(self, page: int) -> bytes:
        """The keys and values of one page. Call these five between steps, from the thread that runs them."""
        return self._states.read_page(page)

    def write_page(self, page: int, data: bytes | bytearray | memoryview) -> None:
        """Put back what `read_page` gave, here or in a decoder of the same `state_fingerprint`."""
        self._states.write_page(page, data)

    def read_slot(self, slot: int) -> bytes:
        """The recurrent state in one slot."""
        return self._states.read_slot(slot)

    def write_slot(self, slot: int, data: bytes | bytearray | memoryview) -> None:
        """Put back what `read_slot` gave, here or in a decoder of the same `state_fingerprint`."""
        self._states.write_slot(slot, data)

    def copy_page(self, source: int, target: int) -> None:
        self._states.copy_page(source, target)

    @cached_property
    def state_fingerprint(self) -> str:
        """32 hex digits; two decoders with the same one write the same bytes into a page for the same tokens."""
        return fingerprint(self.checkpoint, self._all_prepared, self.backend)

    def run(self, step: Step) -> np.ndarray:
        """Logits of step.rows, float32 [L, vocab]."""
        self._check(step)
        return self._bound(step, lambda executable, arrays: executable.run(arrays)["logits"]).astype("f4", copy=False)

    @property
    def top(self) -> int:
        """How many of the largest logits `run_top` finds at most; 0 where it cannot be used."""
        return 0 if self.has_draft_head else self.backend.top

    def run_top(self, step: Step, count: int, *more: Any) -> TopRows:
        """The `count` largest logits of step.rows, and more: backends.base.Executable says what can be asked."""
        self._check(step)
        return self._bound(step, lambda executable, arrays: executable.run_top(arrays, "logits", count, *more))

    def run_hidden(self, step: Step) -> tuple[np.ndarray, np.ndarray]:
        """`run`, and the hidden states of all tokens [T, hidden], for `draft`. Only with `has_draft_head`."""
        self._check(step)
        return _both(self._bound(step, lambda executable, arrays: executable.run(arrays)))

    def draft(self, step: Step) -> tuple[np.ndarray, np.ndarray]:
        """Logits of the token after the next one [L, vocab], and hidden states to draft on from [L, hidden].

        step.vectors are hidden states [T, hidden] and step.ids the tokens that follow theirs.
        """
        self._check(step)
        return _both(self._head_executable.run(step.arrays(self._head.inputs)))

    def _check(self, step: Step) -> None:
        slots = 0 if self.slots is None else self.slots.count
        limits = {"vocab": self.vocab_size, "context": self.max_context, "pages": self.pages.count, "slots": slots}
        check_step("generate", step, **limits)

    def profile(self, step: Step) -> list[tuple[str, int]]:
        """The op and the nanoseconds of every instruction of one step."""
        return self._bound(step, lambda executable, arrays: executable.profile(arrays))

    def _bound(self, step: Step, run: Callable[[Executable, dict[str, Any]], Result]) -> Result:
        """Call `run` with the right executable and inputs: the adapter program only if a sequence has an adapter, that
        for vectors only if the step has some."""
        adapted = step.adapters is not None and bool(step.adapters.any())
        seeing = step.vectors is not None or step.turns is not None
        if not adapted and not seeing:
            return run(self._executable, step.arrays(self.prepared.inputs))
        prepared, executable = self._variant(adapted, seeing)
        with self.adapters.using(step.adapters) if adapted else nullcontext():
            step = filled(step, prepared.inputs, self.config.hidden_size) if seeing else step
            return run(executable, step.arrays(prepared.inputs))

    def logits(
        self, ids: Sequence[int] | np.ndarray, *, chunk: int = STEP_TOKENS, adapter: Adapter | None = None
    ) -> np.ndarray:
        """Logits of every token of one sequence, float32 [len(ids), vocab]; computed in chunks of `chunk` tokens."""
        import numpy as np

        tokens = np.asarray(ids)
        if tokens.ndim != 1 or not tokens.size or tokens.dtype.kind not in "iu":
            raise InputError("logits", "must be a non-empty list of integers", field="ids")
        if tokens.size > self.max_context:
            raise TooLongError(
                "logits",
                f"{tokens.size} tokens exceed the context of {self.max_context}",
                length=tokens.size,
                limit=self.max_context,
            )
        holding = self.holding()
        if not holding.grow(tokens.size):
            wanted, free = holding.missing(tokens.size), self.pages.free_count
            raise BusyError("logits", f"{wanted} pages needed, {free} of {self.pages.count} free", advice="try later")
        try:
            found = []
            for first in range(0, tokens.size, chunk):
                part = tokens[first : first + chunk].astype(np.int32)
                holding.ready()
                step = build_step(
                    [part],
                    starts=[first],
                    asked=[len(part)],
                    pages=[holding.row],
                    slots=slots_of([holding]),
                    adapters=None if adapter is None else [adapter.index],
                )
                found.append(self.run(step))
                holding.advance()
            return np.concatenate(found)
        finally:
            holding.release()

    def holding(self) -> Holding:
        """The pages and slots of a new sequence, none yet."""
        return Holding(self.pages, self.slots, self.max_pages)


def _both(outputs: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    return outputs["logits"].astype("f4", copy=False), outputs["hidden"].astype("f4", copy=False)


def _eos_ids(checkpoint: Checkpoint, vocab_size: int) -> frozenset[int]:
    """Every id that ends a text, from generation_config.json and config.json."""
    found: set[int] = set()
    for file, source in (("generation_config.json", checkpoint.generation), ("config.json", checkpoint.config)):
        value = source.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(id) is int and 0 <= id < vocab_size for id in ids):
            raise FormatError(file, f"must be token ids from 0 to {vocab_size - 1}", field="eos_token_id", given=value)
        found.update(ids)
    return frozenset(found)
