"""Recurrent layers over a ragged batch: each sequence reads its state from one slot and writes it to another.

`slots` [B, 2] has for every sequence the slot to read, -1 for none yet (zeros), and the slot to write. Without state
and slots every sequence is a whole text, as in training: it begins with zeros, and nothing is kept. All ops compute
token after token, so a text gives the same bits however it is cut into steps (decision 0046).
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np

from weft.ops.packed import wide
from weft.ops.registry import Array, Conv, Cost, Integers, Recurrent, Sample, Weight, op, require
from weft.ops.samples import normal, segments, ugly
from weft.ops.spec import Spec
from weft.ops.state import NO_SLOT, SlotArray
from weft.ops.tolerance import chain

MAX_WIDTH = 16  # of a convolution: csrc/kernels/causal_conv.cpp
MAX_KEYS = 4096  # rows of a head's state: a worker's scratch holds 32 columns of it


def _check_state(
    where: str, state: Spec | None, shape: tuple[Any, ...], slots: Spec | None, segments: Spec | None
) -> None:
    require(segments is not None and segments.rank == 1, where, "must be [B+1]", field="segments", given=segments)
    require((state is None) == (slots is None), where, "must be there if a state is", field="slots", given=slots)
    if state is None or slots is None or segments is None:
        return
    require(state.shape == shape, where, f"must be {list(shape)}", field="state", given=state)
    fits = slots.rank == 2 and slots.shape[1] == 2 and segments.shape[0] == slots.shape[0] + 1
    require(fits, where, f"must be [B, 2] for segments [B+1] = {segments}", field="slots", given=slots)


def _texts(
    state: SlotArray | None, slots: np.ndarray | None, segments: np.ndarray, shape: tuple[int, ...]
) -> Iterator[tuple[int, int, np.ndarray, Callable[[np.ndarray], None]]]:
    """Of each sequence: its first token, its end, the state before it, and what keeps the state after it."""
    for number, (start, end) in enumerate(pairwise(segments)):
        if state is None or slots is None:
            yield start, end, np.zeros(shape), lambda memory: None
        else:
            source, target = slots[number]
            yield start, end, state.read(source), partial(state.write, target)


def _kept_bytes(state: Spec | None, slots: Spec | None) -> Any:
    return 0 if state is None or slots is None else 2 * slots.shape[0] * state.size * 4


@op(effect=True)
def causal_conv(
    x: Array,
    weight: Weight,
    state: Conv | None = None,
    slots: Integers | None = None,
    segments: Integers | None = None,
    bias: Array | None = None,
) -> Array:
    """Depthwise causal convolution: y[t, c] = bias[c] + sum_j weight[c, j] x[t - W + 1 + j, c].  x [T, C],
    weight [C, W] or [C, 1, W], state [C, W], slots [B, 2], segments [B+1], bias [C] -> [T, C]

    The inputs before the step's first token are in the state, zeros at a text's start. The last W - 1 inputs are
    written to the other slot.
    """
    taps = wide(weight).reshape(weight.shape[0], -1)
    width = taps.shape[1]
    out = np.zeros(x.shape)
    for start, end, before, keep in _texts(state, slots, cast(np.ndarray, segments), (width - 1, x.shape[1])):
        seen = np.concatenate([before, x[start:end]])  # [W - 1 + n, C]
        for j in range(width):
            out[start:end] += taps[:, j] * seen[j : j + end - start]
        keep(seen[len(seen) - width + 1 :])
    return out if bias is None else out + bias


@causal_conv.shape
def causal_conv_shape(
    x: Spec, weight: Spec, state: Spec | None, slots: Spec | None, segments: Spec | None, bias: Spec | None
) -> Spec:
    require(x.rank == 2, "causal_conv", "must be [T, C]", field="x", given=x)
    flat = (weight.shape[0], weight.shape[-1])
    middle = weight.shape[1:-1] in ((), (1,))
    fits = middle and weight.shape[0] == x.shape[1]
    require(fits, "causal_conv", f"must be [C, W] or [C, 1, W] for x {x}", field="weight", given=weight)
    dense = not weight.dtype.quantised
    require(dense, "causal_conv", "must be f32, f16 or bf16", field="weight", given=weight)
    small = isinstance(flat[1], int) and 1 < flat[1] <= MAX_WIDTH
    require(small, "causal_conv", f"must be 2 to {MAX_WIDTH} wide", field="weight", given=weight)
    fits = bias is None or bias.shape == x.shape[1:]
    require(fits, "causal_conv", f"must be [C] of x {x}", field="bias", given=bias)
    _check_state("causal_conv", state, flat, slots, segments)
    return x


@causal_conv.cost
def causal_conv_cost(
    x: Spec, weight: Spec, state: Spec | None, slots: Spec | None, segments: Spec | None, bias: Spec | None
) -> Cost:
    kept = 0 if slots is None else 2 * slots.shape[0] * x.shape[1] * (weight.shape[-1] - 1) * 4
    return Cost(flops=2 * x.size * weight.shape[-1], bytes=2 * x.nbytes + weight.nbytes + kept)


def slot_table(starting: list[bool]) -> np.ndarray:
    """Slots of sequences: number i reads slot 2 i, or none where it starts, and writes slot 2 i + 1."""
    rows = [[NO_SLOT if new else 2 * i, 2 * i + 1] for i, new in enumerate(starting)]
    return np.asarray(rows, np.int32)


def filled(rng: np.random.Generator, kind: str, slots: int, shape: tuple[int, ...]) -> SlotArray:
    """A state of random numbers."""
    state = SlotArray.zeros(kind, slots, shape)
    state.values[...] = normal(rng, *state.values.shape)
    return state


@causal_conv.samples
def causal_conv_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for lengths, channels, width in [([1], 1, 2), ([5, 1, 2], 17, 4), ([33, 2], 64, 3), ([1, 1, 40], 65, 16)]:
        x, starting = normal(rng, sum(lengths), channels), [i % 2 == 0 for i in range(len(lengths))]
        table = slot_table(starting), segments(lengths)
        for bias in (None, normal(rng, channels)):
            state = filled(rng, "conv", 2 * len(lengths), (channels, width))
            yield (x, normal(rng, channels, width), state, *table, bias), {}
        yield (x, normal(rng, channels, width), None, None, segments(lengths), bias), {}
    state = filled(rng, "conv", 2, (20, 4))
    yield (ugly(rng, 20, 9).T, normal(rng, 20, 1, 4), state, slot_table([False]), segments([9])), {}


@causal_conv.vjp
def causal_conv_vjp(
    grad: np.ndarray, x: Any, weight: Any, state: Any = None, slots: Any = None, segments: Any = None, bias: Any = None
) -> tuple[Any, ...]:
    """The state before a sequence is fixed."""
    taps = wide(weight).reshape(weight.shape[0], -1)
    width = taps.shape[1]
    to_x, to_taps = np.zeros(x.shape), np.zeros(taps.shape)
    for start, end, before, _ in _texts(state, slots, segments, (width - 1, x.shape[1])):
        seen = np.concatenate([before, x[start:end]])
        to_seen = np.zeros(seen.shape)
        for j in range(width):
            to_seen[j : j + end - start] += taps[:, j] * grad[start:end]
            to_taps[:, j] += np.sum(seen[j : j + end - start] * grad[start:end], axis=0)
        to_x[start:end] = to_seen[width - 1 :]
    return to_x, to_taps.reshape(weight.shape), None, None, None, None if bias is None else grad.sum(axis=0)


causal_conv.tolerance(because="a sum of up to 16 products in f32")


@op(effect=True)
def delta_rule(
    q: Array,
    k: Array,
    v: Array,
    decay: Array,
    beta: Array,
    state: Recurrent | None = None,
    slots: Integers | None = None,
    segments: Integers | None = None,
    *,
    scale: float,
    tiled: bool = False,
) -> Array:
    """The gated delta rule.  q, k [T, G, K], v [T, H, V], decay, beta [T, H], state [H, K, V], slots [B, 2],
    segments [B+1] -> [T, H, V]

    Token after token, with one state S [K, V] for each head:
    S = e^decay S; u = beta (v - kT S); S = S + k uT; y = scale qT S. Head h reads query and key head h // (H / G), or
    h % G where the heads are tiled.
    """
    read = _heads_read(v.shape[1], q.shape[1], tiled)
    query, key = q[:, read], k[:, read]  # [T, H, K]
    out, shape = np.zeros(v.shape), (v.shape[1], k.shape[2], v.shape[2])
    for start, end, memory, keep in _texts(state, slots, cast(np.ndarray, segments), shape):
        for t in range(start, end):
            memory = memory * np.exp(decay[t])[:, None, None]
            known = np.einsum("hk,hkv->hv", key[t], memory)
            change = beta[t][:, None] * (v[t] - known)
            memory = memory + key[t][:, :, None] * change[:, None, :]
            out[t] = scale * np.einsum("hk,hkv->hv", query[t], memory)
        keep(memory)
    return out


def _heads_read(heads: int, groups: int, tiled: bool = False) -> np.ndarray:
    """The group that each head reads."""
    return np.arange(heads) % groups if tiled else np.arange(heads) // (heads // groups)


def _to_groups(to_heads: np.ndarray, read: np.ndarray, groups: int) -> np.ndarray:
    """The sums over the heads that read each group.  [T, H, K] -> [T, G, K]"""
    total = np.zeros((to_heads.shape[0], groups, to_heads.shape[2]))
    np.add.at(total.swapaxes(0, 1), read, to_heads.swapaxes(0, 1))
    return total


@delta_rule.shape
def delta_rule_shape(
    q: Spec,
    k: Spec,
    v: Spec,
    decay: Spec,
    beta: Spec,
    state: Spec | None,
    slots: Spec | None,
    segments: Spec | None,
    *,
    scale: float,
    tiled: bool,
) -> Spec:
    require(q.rank == 3 and q == k, "delta_rule", f"must be [T, G, K] as q is; q is {q}", field="k", given=k)
    fits = v.rank == 3 and v.shape[0] == q.shape[0] and v.shape[1] % q.shape[1] == 0
    what = f"must have the tokens of q {q}, and a multiple of its heads"
    require(fits, "delta_rule", what, field="v", given=v)
    short = isinstance(q.shape[2], int) and q.shape[2] <= MAX_KEYS
    require(short, "delta_rule", f"must have heads of at most {MAX_KEYS}", field="q", given=q)
    for name, spec in (("decay", decay), ("beta", beta)):
        require(spec.shape == v.shape[:2], "delta_rule", f"must be [T, H] of v {v}", field=name, given=spec)
    _check_state("delta_rule", state, (v.shape[1], q.shape[2], v.shape[2]), slots, segments)
    return v


@delta_rule.cost
def delta_rule_cost(
    q: Spec,
    k: Spec,
    v: Spec,
    decay: Spec,
    beta: Spec,
    state: Spec | None,
    slots: Spec | None,
    segments: Spec | None,
    *,
    scale: float,
    tiled: bool,
) -> Cost:
    kept = _kept_bytes(state, slots)
    return Cost(flops=7 * v.size * q.shape[2], bytes=q.nbytes + k.nbytes + 2 * v.nbytes + 2 * decay.nbytes + kept)


def _delta_operands(
    rng: np.random.Generator, lengths: list[int], groups: int, heads: int, keys: int, values: int
) -> Any:
    tokens = sum(lengths)
    q, k = normal(rng, tokens, groups, keys), normal(rng, tokens, groups, keys)
    q, k = (part / np.linalg.norm(part, axis=-1, keepdims=True) for part in (q, k))  # as models have them
    decay = -np.abs(normal(rng, tokens, heads))
    beta = 1 / (1 + np.exp(-normal(rng, tokens, heads)))
    return (*(part.astype(np.float32) for part in (q, k, normal(rng, tokens, heads, values), decay, beta)),)


@delta_rule.samples
def delta_rule_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for lengths, groups, heads, keys, values in [
        ([1], 1, 1, 1, 1),
        ([5, 1, 3], 2, 2, 16, 17),
        ([33, 2], 2, 4, 17, 33),
        ([1, 65], 1, 3, 64, 64),
    ]:
        operands = _delta_operands(rng, lengths, groups, heads, keys, values)
        state = filled(rng, "recurrent", 2 * len(lengths), (heads, keys, values))
        table = slot_table([i % 2 == 0 for i in range(len(lengths))]), segments(lengths)
        yield (*operands, state, *table), {"scale": keys**-0.5, "tiled": heads > 2 * groups}
        yield (*operands, None, None, segments(lengths)), {"scale": keys**-0.5, "tiled": heads == 2 * groups}
    q, k, _, decay, beta = _delta_operands(rng, [9], 1, 2, 8, 20)
    state = filled(rng, "recurrent", 2, (2, 8, 20))
    v = ugly(rng, 2, 9, 20).transpose(1, 0, 2)
    yield (q, k, v, decay, beta, state, slot_table([False]), segments([9])), {"scale": 1.0}


@delta_rule.vjp
def delta_rule_vjp(
    grad: np.ndarray,
    q: Any,
    k: Any,
    v: Any,
    decay: Any,
    beta: Any,
    state: Any = None,
    slots: Any = None,
    segments: Any = None,
    *,
    scale: float,
    tiled: bool = False,
) -> tuple[Any, ...]:
    """The state before a sequence is fixed."""
    read = _heads_read(v.shape[1], q.shape[1], tiled)
    query, key = q[:, read], k[:, read]
    to_q, to_k, to_v = np.zeros(query.shape), np.zeros(key.shape), np.zeros(v.shape)
    to_decay, to_beta = np.zeros(decay.shape), np.zeros(beta.shape)
    for start, end, memory, _ in _texts(state, slots, segments, (v.shape[1], k.shape[2], v.shape[2])):
        faded = []  # the state before each token, after the decay
        for t in range(start, end):
            faded.append(memory * np.exp(decay[t])[:, None, None])
            change = beta[t][:, None] * (v[t] - np.einsum("hk,hkv->hv", key[t], faded[-1]))
            memory = faded[-1] + key[t][:, :, None] * change[:, None, :]
        to_memory = np.zeros(memory.shape)
        for t in reversed(range(start, end)):
            before = faded[t - start]
            missing = v[t] - np.einsum("hk,hkv->hv", key[t], before)
            change = beta[t][:, None] * missing
            to_memory = to_memory + scale * query[t][:, :, None] * grad[t][:, None, :]
            after = before + key[t][:, :, None] * change[:, None, :]
            to_q[t] = scale * np.einsum("hkv,hv->hk", after, grad[t])
            to_change = np.einsum("hk,hkv->hv", key[t], to_memory)
            to_v[t] = beta[t][:, None] * to_change
            to_beta[t] = np.sum(to_change * missing, axis=1)
            to_k[t] = np.einsum("hkv,hv->hk", to_memory, change) - np.einsum("hkv,hv->hk", before, to_v[t])
            to_memory = to_memory - key[t][:, :, None] * to_v[t][:, None, :]
            to_decay[t] = np.sum(to_memory * before, axis=(1, 2))
            to_memory = to_memory * np.exp(decay[t])[:, None, None]
    groups = q.shape[1]
    return _to_groups(to_q, read, groups), _to_groups(to_k, read, groups), to_v, to_decay, to_beta, None, None, None


delta_rule.tolerance(f32=chain(256), because="a token's error stays in the state that later tokens read")


@op(effect=True)
def mamba2(
    x: Array,
    b: Array,
    c: Array,
    rate: Array,
    decay: Array,
    skip: Array,
    state: Recurrent | None = None,
    slots: Integers | None = None,
    segments: Integers | None = None,
) -> Array:
    """Mamba2's scan.  x [T, H, P], b, c [T, G, N], rate [T, H], decay, skip [H], state [H, N, P], slots [B, 2],
    segments [B+1] -> [T, H, P]

    Token after token, with one state S [N, P] for each head: S = e^(rate decay) S + b (rate x)T; y = cT S + skip x.
    Head h reads b and c of group h // (H / G).
    """
    read = _heads_read(x.shape[1], b.shape[1])
    into, away = b[:, read], c[:, read]  # [T, H, N]
    out, shape = skip[:, None] * x, (x.shape[1], b.shape[2], x.shape[2])
    for start, end, memory, keep in _texts(state, slots, cast(np.ndarray, segments), shape):
        for t in range(start, end):
            memory = memory * np.exp(rate[t] * decay)[:, None, None]
            memory = memory + into[t][:, :, None] * (rate[t][:, None] * x[t])[:, None, :]
            out[t] += np.einsum("hn,hnp->hp", away[t], memory)
        keep(memory)
    return out


@mamba2.shape
def mamba2_shape(
    x: Spec,
    b: Spec,
    c: Spec,
    rate: Spec,
    decay: Spec,
    skip: Spec,
    state: Spec | None,
    slots: Spec | None,
    segments: Spec | None,
) -> Spec:
    require(b.rank == 3 and b == c, "mamba2", f"must be [T, G, N] as b is; b is {b}", field="c", given=c)
    fits = x.rank == 3 and x.shape[0] == b.shape[0] and x.shape[1] % b.shape[1] == 0
    require(fits, "mamba2", f"must have the tokens of b {b}, and a multiple of its groups", field="x", given=x)
    short = isinstance(b.shape[2], int) and b.shape[2] <= MAX_KEYS
    require(short, "mamba2", f"must have states of at most {MAX_KEYS}", field="b", given=b)
    require(rate.shape == x.shape[:2], "mamba2", f"must be [T, H] of x {x}", field="rate", given=rate)
    for name, spec in (("decay", decay), ("skip", skip)):
        require(spec.shape == x.shape[1:2], "mamba2", f"must be [H] of x {x}", field=name, given=spec)
    _check_state("mamba2", state, (x.shape[1], b.shape[2], x.shape[2]), slots, segments)
    return x


@mamba2.cost
def mamba2_cost(
    x: Spec,
    b: Spec,
    c: Spec,
    rate: Spec,
    decay: Spec,
    skip: Spec,
    state: Spec | None,
    slots: Spec | None,
    segments: Spec | None,
) -> Cost:
    kept = _kept_bytes(state, slots)
    return Cost(flops=5 * x.size * b.shape[2], bytes=2 * x.nbytes + b.nbytes + c.nbytes + rate.nbytes + kept)


@mamba2.samples
def mamba2_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for lengths, groups, heads, size, values in [
        ([1], 1, 1, 1, 1),
        ([5, 1, 3], 2, 2, 16, 17),
        ([33, 2], 2, 4, 17, 33),
        ([1, 65], 1, 3, 64, 64),
        ([9], 1, 2, 8, 20),
    ]:
        tokens = sum(lengths)
        x = ugly(rng, heads, tokens, values).transpose(1, 0, 2) if size == 8 else normal(rng, tokens, heads, values)
        b, c = normal(rng, tokens, groups, size), normal(rng, tokens, groups, size)
        rate, decay = np.log1p(np.exp(normal(rng, tokens, heads))), -np.exp(normal(rng, heads))
        state = filled(rng, "recurrent", 2 * len(lengths), (heads, size, values))
        table = slot_table([i % 2 == 0 for i in range(len(lengths))]), segments(lengths)
        parts = [part.astype(np.float32) for part in (b, c, rate, decay, normal(rng, heads))]
        yield (x, *parts, state, *table), {}
        yield (x, *parts, None, None, segments(lengths)), {}


@mamba2.vjp
def mamba2_vjp(
    grad: np.ndarray,
    x: Any,
    b: Any,
    c: Any,
    rate: Any,
    decay: Any,
    skip: Any,
    state: Any = None,
    slots: Any = None,
    segments: Any = None,
) -> tuple[Any, ...]:
    """The state before a sequence is fixed."""
    read, groups = _heads_read(x.shape[1], b.shape[1]), b.shape[1]
    into, away = b[:, read], c[:, read]
    to_b, to_c, to_x = np.zeros(into.shape), np.zeros(away.shape), skip[:, None] * grad
    to_rate, to_decay = np.zeros(rate.shape), np.zeros(decay.shape)
    for start, end, memory, _ in _texts(state, slots, segments, (x.shape[1], b.shape[2], x.shape[2])):
        states = [memory]
        for t in range(start, end):
            kept = np.exp(rate[t] * decay)[:, None, None]
            states.append(states[-1] * kept + into[t][:, :, None] * (rate[t][:, None] * x[t])[:, None, :])
        to_memory = np.zeros(memory.shape)
        for t in reversed(range(start, end)):
            before, after, kept = states[t - start], states[t - start + 1], np.exp(rate[t] * decay)
            to_memory = to_memory + away[t][:, :, None] * grad[t][:, None, :]
            to_c[t] = np.einsum("hnp,hp->hn", after, grad[t])
            to_b[t] = np.einsum("hnp,hp->hn", to_memory, rate[t][:, None] * x[t])
            to_step = np.einsum("hn,hnp->hp", into[t], to_memory)
            to_x[t] += rate[t][:, None] * to_step
            to_power = kept * np.sum(to_memory * before, axis=(1, 2))  # of rate * decay
            to_rate[t] = np.sum(to_step * x[t], axis=1) + to_power * decay
            to_decay += to_power * rate[t]
            to_memory = to_memory * kept[:, None, None]
    to_skip = np.sum(grad * x, axis=(0, 2))
    to_groups = _to_groups(to_b, read, groups), _to_groups(to_c, read, groups)
    return to_x, *to_groups, to_rate, to_decay, to_skip, None, None, None


mamba2.tolerance(f32=chain(256), because="a token's error stays in the state that later tokens read")
