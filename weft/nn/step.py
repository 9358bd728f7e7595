"""The step: one ragged batch of tokens from any number of sequences. Nothing is padded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from weft.errors import UnsupportedError
from weft.frozen import frozen

if TYPE_CHECKING:
    from weft.graph import Tensor, Trace


@frozen
class Step:
    """The only run-time input of a model; while tracing the fields are symbolic (TracedStep), when running arrays.

    Nobody changes a step. T tokens, B sequences, L rows that are asked for.
    """

    ids: Any  # [T] token ids, all sequences one after another
    positions: Any  # [T] position of each token in its sequence
    segments: Any  # [B+1] where each sequence starts in the flat list
    rows: Any  # [L] which tokens need logits or hidden states
    types: Any = None  # [T] which text of a pair a token belongs to (BERT); None where the model does not ask
    pages: Any = None  # [B, max_pages] page table into the pooled key/value state; None for models without one
    slots: Any = (
        None  # [B, 2] the slot each recurrent state is read from, -1 for none yet, and the one it is written to
    )
    spans: Any = None  # [B+1] where the rows of each sequence start in `rows`; None where they are not pooled
    adapters: Any = None  # [B] index of each sequence's adapter, 0 is none; None where no sequence has one
    # [T, n] float32, what tokens are instead of ids: patches of pictures, hidden states that a draft head reads
    vectors: Any = None
    added: Any = None  # [T, hidden] float32, added to the inputs of tokens: positions of a picture, resized for it
    deep: Any = None  # arrays like `added`, one for each of the first layers: added to what it gives (deep stack)
    turns: Any = None  # [3, T] time, row and column that tokens are rotated by; None where they are the positions
    reach: Any = None  # [T] the last position that a token attends to; None where that is its own

    @property
    def context(self) -> int:
        """While tracing: positions that a sequence may reach, 0 for as many as the model has."""
        raise AssertionError("only the step of a trace has a context")

    def kv(self, layer: int, heads: int, dim: int) -> Tensor:
        """While tracing: declare the paged keys and values of a layer."""
        raise AssertionError("states are declared while tracing")

    def deep_of(self, layer: int) -> Tensor | None:
        """While tracing: what is added to the output of a layer [T, hidden]; None for steps without pictures."""
        raise AssertionError("only the step of a trace has layers")

    def recurrent(self, layer: int, *shape: int) -> Tensor | None:
        """While tracing: declare the recurrent state of a layer, an array of this shape for each sequence; None for
        whole texts."""
        raise AssertionError("states are declared while tracing")

    def conv(self, layer: int | str, channels: int, width: int) -> Tensor | None:
        """While tracing: declare the state of a layer's convolution over `width` inputs; None for whole texts."""
        raise AssertionError("states are declared while tracing")

    def arrays(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """The inputs of a program by name; without `names` all fields that are there."""
        if names is not None:
            return {name: self._field(name) for name in names}
        return {name: value for name in FIELDS if (value := getattr(self, name)) is not None}

    def _field(self, name: str) -> Any:
        """A field, or deep.0 for the first array of `deep`."""
        field, _, index = name.partition(".")
        return getattr(self, field)[int(index)] if index else getattr(self, field)


FLOATS = ("vectors", "added", "deep")  # all other fields are int32
FIELDS = tuple(field.name for field in fields(Step))


class TracedStep(Step):
    """The symbolic step of a trace. Optional inputs are declared when the model first reads them.

    `max_pages` 0: the model runs without a state, as embedders do. `kv_dtype` is the element type of keys and values.
    With `spans` the rows are pooled, else all tokens are. `vectors` is the size of a token's vector, `added` that of
    what is added to it, of models that read them (decision 0053). With `seeing` the fields `deep`, `turns` and `reach`
    are there, for models that read pictures and ask for them.
    `whole`: every sequence is a whole text, so recurrent layers begin with zeros and keep nothing.
    """

    def __init__(
        self,
        trace: Trace,
        *,
        context: int = 0,
        max_pages: int = 0,
        kv_dtype: str = "f32",
        spans: bool = False,
        vectors: int = 0,
        added: int = 0,
        seeing: bool = False,
        whole: bool = False,
    ) -> None:
        from weft.graph import B, L, T

        self.__dict__.update(
            ids=trace.input("ids", (T,), "i32"),
            positions=trace.input("positions", (T,), "i32"),
            segments=trace.input("segments", (B + 1,), "i32"),
            rows=trace.input("rows", (L,), "i32"),
            adapters=None,  # the pass `adapt` adds them
            _trace=trace,
            _context=context,
            _kv_dtype=kv_dtype,
            _whole=whole,
            _optional={
                "types": (T,),
                "spans": (B + 1,) if spans else None,
                "pages": (B, max_pages) if max_pages else None,
                "slots": (B, 2) if max_pages else None,
                "vectors": (T, vectors) if vectors else None,
                "added": (T, added) if added else None,
                "deep": (T, vectors) if seeing else None,
                "turns": (3, T) if seeing else None,
                "reach": (T,) if seeing else None,
            },
        )

    def _declared(self, name: str, index: str = "") -> Tensor | None:
        shape = self._optional[name]
        return None if shape is None else self._trace.input(name + index, shape, "f32" if name in FLOATS else "i32")

    types = property(lambda self: self._declared("types"))
    spans = property(lambda self: self._declared("spans"))
    pages = property(lambda self: self._declared("pages"))
    slots = property(lambda self: self._declared("slots"))
    vectors = property(lambda self: self._declared("vectors"))
    added = property(lambda self: self._declared("added"))
    turns = property(lambda self: self._declared("turns"))
    reach = property(lambda self: self._declared("reach"))
    context = property(lambda self: self._context)

    def deep_of(self, layer: int) -> Tensor | None:
        return self._declared("deep", f".{layer}")

    def kv(self, layer: int, heads: int, dim: int) -> Tensor:
        return self._trace.kv(f"kv.{layer}", (heads, dim), self._kv_dtype)

    def recurrent(self, layer: int, *shape: int) -> Tensor | None:
        return None if self._whole else self._stateful().recurrent(f"recurrent.{layer}", shape)

    def conv(self, layer: int | str, channels: int, width: int) -> Tensor | None:
        return None if self._whole else self._stateful().conv(f"conv.{layer}", (channels, width))

    def _stateful(self) -> Trace:
        if self._optional["slots"] is None:
            raise UnsupportedError("load", "the model has recurrent layers; it generates text and does not embed")
        return self._trace

    if TYPE_CHECKING:
        _trace: Trace
        _context: int
        _kv_dtype: str
        _whole: bool
        _optional: dict[str, Any]
