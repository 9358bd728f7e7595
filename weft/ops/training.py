"""What only training computes: products with trained matrices, sums of their gradients over a batch, and the loss.

A sum over a batch is made sequence by sequence, each begun at zero, and added to what came before in the order of the
sequences. So its bits depend neither on the number of threads nor on how a batch is cut into steps.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from weft.ops.backward import SECOND, back_cost, back_shape
from weft.ops.elementwise import capped
from weft.ops.gather import check_rows
from weft.ops.matmul import GROUPS, matmul, product_cost, product_shape
from weft.ops.matmul import product as grouped_product
from weft.ops.packed import wide
from weft.ops.registry import Array, Cost, Integers, Sample, Weight, op, require
from weft.ops.samples import SCALES, integers, normal, segments, strided, ugly, weight
from weft.ops.spec import Spec
from weft.ops.tolerance import chain


@op
def product(x: Array, weight: Array, starts: Integers | None = None) -> Array:
    """x times a matrix that is trained.  x [..., K], weight [N, K] -> [..., N]

    With starts [E+1] it is E products: rows starts[e] to starts[e + 1] of x [R, K] times matrix e of weight [E, N, K].
    """
    return grouped_product(x, weight, None, starts)


@product.shape
def product_of_arrays_shape(x: Spec, weight: Spec, starts: Spec | None) -> Spec:
    return product_shape("product", x, weight, None, starts)


@product.cost
def product_of_arrays_cost(x: Spec, weight: Spec, starts: Spec | None) -> Cost:
    return product_cost(x, weight, None, starts)


@product.samples
def product_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, n, k in [(1, 1, 1), (1, 17, 65), (3, 16, 64), (7, 8, 100), (33, 65, 257), (5, 130, 129)]:
        yield (normal(rng, rows, k), normal(rng, n, k)), {}
    yield (normal(rng, 2, 3, 32), normal(rng, 5, 32)), {}
    yield (strided(rng, 5, 33), strided(rng, 17, 33)), {}
    yield (ugly(rng, 5, 65), normal(rng, 17, 65)), {}
    for sizes in GROUPS:
        yield (normal(rng, sum(sizes), 100), normal(rng, len(sizes), 17, 100), segments(sizes)), {}
    yield (strided(rng, 5, 33), normal(rng, 2, 3, 33), segments([2, 3])), {}


@product.vjp
def product_vjp(grad: np.ndarray, x: np.ndarray, weight: np.ndarray, starts: Any = None) -> tuple[Any, ...]:
    to_x, to_weight, *_ = matmul.gradient(grad, x, weight, None, starts)
    return to_x, to_weight, None


product.tolerance(f32=chain(1024), because="one f32 chain over K")


@op
def product_back(grad: Array, weight: Array, starts: Integers | None = None) -> Array:
    """The gradient at x of product.  grad [..., N], weight [N, K] -> [..., K], or with starts as for product"""
    return grouped_product(grad, weight.swapaxes(-1, -2), None, starts)


@product_back.shape
def product_back_shape(grad: Spec, weight: Spec, starts: Spec | None) -> Spec:
    return back_shape("product_back", grad, weight, starts)


product_back.cost(back_cost)


@product_back.samples
def product_back_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, n, k in [(1, 1, 1), (1, 17, 65), (3, 16, 64), (7, 8, 100), (33, 65, 257), (5, 130, 129)]:
        yield (normal(rng, rows, n), normal(rng, n, k)), {}
    yield (normal(rng, 2, 3, 5), normal(rng, 5, 32)), {}
    yield (strided(rng, 5, 17), strided(rng, 17, 33)), {}
    yield (ugly(rng, 5, 65), normal(rng, 65, 17)), {}
    for sizes in GROUPS:
        yield (normal(rng, sum(sizes), 17), normal(rng, len(sizes), 17, 100), segments(sizes)), {}
    yield (strided(rng, 5, 3), normal(rng, 2, 3, 33), segments([2, 3])), {}


product_back.no_gradient(SECOND)
product_back.tolerance(f32=chain(1024), because="one f32 chain over N")


@product.back
def back_of_product(grad: Any, x: Any, weight: Any, starts: Any = None) -> tuple[Any, ...]:
    return product_back(grad, weight, starts), None, None  # the weight's is weight_grad, which knows the sequences


def _check_batch(where: str, grad: Spec, starts: Spec, rows: Spec | None, each: int = 1) -> None:
    require(grad.rank == 2, where, "must be [M, N]", field="grad", given=grad)
    require(starts.rank == 1, where, "must be [B+1]", field="segments", given=starts)
    fits = rows is None or rows.shape[0] * each == grad.shape[0]
    require(fits, where, f"must be [M] of grad {grad}", field="rows", given=rows)


def _by_sequence(count: int, starts: np.ndarray, rows: np.ndarray | None) -> Iterator[np.ndarray]:
    """Which rows belong to each sequence, as masks."""
    owner = np.searchsorted(starts, np.arange(count) if rows is None else rows, side="right") - 1
    for number, _ in enumerate(pairwise(starts)):
        yield owner == number


@op(in_place=(("into",),))
def weight_grad(
    grad: Array,
    x: Array,
    segments: Integers,
    into: Array,
    rows: Integers | None = None,
    starts: Integers | None = None,
) -> Array:
    """The gradient of a trained matrix, added to that of the batch so far.  grad [M, N], x [M, K], segments [B+1],
    into [N, K], rows [M] or absent -> [N, K]

    Row m belongs to token rows[m], or to token m where rows is absent. With starts [E+1] it is the gradient of a stack,
    into [E, N, K]: rows starts[e] to starts[e + 1], whose tokens rise, are of matrix e.
    """
    if starts is not None:
        assert rows is not None
        groups = [slice(first, end) for first, end in pairwise(starts)]
        each = [
            weight_grad.reference(grad[mine], x[mine], segments, one, rows[mine]) for mine, one in zip(groups, into)
        ]
        return np.stack(each)
    total = into
    for mine in _by_sequence(len(grad), segments, rows):
        total = total + grad[mine].T @ x[mine]
    return total


@weight_grad.shape
def weight_grad_shape(grad: Spec, x: Spec, segments: Spec, into: Spec, rows: Spec | None, starts: Spec | None) -> Spec:
    _check_batch("weight_grad", grad, segments, rows)
    fits = x.rank == 2 and x.shape[0] == grad.shape[0]
    require(fits, "weight_grad", f"must have the rows of grad {grad}", field="x", given=x)
    wanted: tuple[Any, ...] = (grad.shape[1], x.shape[1])
    if starts is not None:
        require(rows is not None, "weight_grad", "must be given with starts", field="rows", given=rows)
        require(starts.rank == 1, "weight_grad", "must be [E+1]", field="starts", given=starts)
        wanted = (starts.shape[0] - 1, *wanted)
    require(into.shape == wanted, "weight_grad", f"must be {list(wanted)}", field="into", given=into)
    return into


@weight_grad.cost
def weight_grad_cost(grad: Spec, x: Spec, segments: Spec, into: Spec, rows: Spec | None, starts: Spec | None) -> Cost:
    return Cost(flops=2 * grad.size * x.shape[1], bytes=grad.nbytes + x.nbytes + 2 * into.nbytes)


@weight_grad.samples
def weight_grad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    several = [([1], 1, 1), ([5, 1, 17], 8, 65), ([33, 2], 17, 100), ([40], 65, 8), ([3, 35], 130, 129)]
    # Sequences that are taken together, and one that is longer than what is.
    for lengths, n, k in [*several, ([200, 100, 3, 290, 1], 9, 33), ([2, 3100, 3], 5, 19)]:
        tokens = sum(lengths)
        operands = normal(rng, tokens, n), normal(rng, tokens, k), segments(lengths), normal(rng, n, k)
        yield operands, {}
    some = integers([0, 4, 5, 9])
    yield (normal(rng, 4, 3), normal(rng, 4, 17), segments([5, 2, 3]), normal(rng, 3, 17), some), {}
    yield (strided(rng, 9, 5), strided(rng, 9, 33), segments([4, 5]), np.zeros((5, 33), np.float32)), {}
    yield (ugly(rng, 9, 5), normal(rng, 9, 33), segments([4, 5]), np.zeros((5, 33), np.float32)), {}
    for sizes in GROUPS:
        tokens = sum(sizes)
        owners = np.concatenate([np.sort(rng.choice(tokens, size, replace=False)) for size in sizes])
        lengths = [tokens - tokens // 3, tokens // 3]
        into = normal(rng, len(sizes), 5, 33)
        given = normal(rng, tokens, 5), normal(rng, tokens, 33), segments(lengths), into
        yield (*given, integers(owners), segments(sizes)), {}


weight_grad.no_gradient(SECOND)
weight_grad.tolerance(f32=chain(1024), because="one f32 chain over the rows of a sequence, then one over sequences")


@op(in_place=(("into",),))
def row_grad(grad: Array, segments: Integers, into: Array, rows: Integers | None = None, *, each: int = 1) -> Array:
    """The gradient of a trained row that all tokens share, added to that of the batch so far.  grad [M each, D],
    segments [B+1], into [D], rows [M] or absent -> [D]

    Each token has `each` rows of grad, one after another.
    """
    total = into
    for mine in _by_sequence(len(grad) // each, segments, rows):
        total = total + grad[np.repeat(mine, each)].sum(axis=0)
    return total


@row_grad.shape
def row_grad_shape(grad: Spec, segments: Spec, into: Spec, rows: Spec | None, *, each: int) -> Spec:
    require(each > 0, "row_grad", "must be above zero", field="each", given=each)
    _check_batch("row_grad", grad, segments, rows, each)
    require(into.shape == grad.shape[1:], "row_grad", f"must be [D] of grad {grad}", field="into", given=into)
    return into


@row_grad.cost
def row_grad_cost(grad: Spec, segments: Spec, into: Spec, rows: Spec | None, *, each: int) -> Cost:
    return Cost(flops=grad.size, bytes=grad.nbytes + 2 * into.nbytes)


@row_grad.samples
def row_grad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for lengths, dim in [([1], 1), ([5, 1, 17], 65), ([33, 2], 64)]:
        yield (normal(rng, sum(lengths), dim), segments(lengths), normal(rng, dim)), {}
    yield (normal(rng, 4, 17), segments([5, 2, 3]), normal(rng, 17), integers([0, 4, 5, 9])), {}
    yield (normal(rng, 12, 17), segments([5, 2, 3]), normal(rng, 17), integers([0, 4, 5, 9])), {"each": 3}
    yield (normal(rng, 14, 33), segments([4, 1, 2]), normal(rng, 33)), {"each": 2}
    yield (strided(rng, 9, 33), segments([4, 5]), np.zeros(33, np.float32)), {}
    yield (ugly(rng, 9, 33), segments([4, 5]), np.zeros(33, np.float32)), {}


row_grad.no_gradient(SECOND)
row_grad.tolerance(f32=chain(256), because="one f32 chain over the rows of a sequence, then one over sequences")


@op(in_place=(("into",),))
def table_grad(grad: Array, ids: Integers, into: Array) -> Array:
    """The gradient of a trained table whose rows `ids` were taken, added to that of the batch so far.  grad [M, D],
    ids [M], into [V, D] -> [V, D]

    Each row of grad is added to its row of the table, one after another: no sequence needs a sum of its own.
    """
    check_rows("table_grad", "ids", ids, len(into))
    total = np.array(into)
    np.add.at(total, ids, grad)
    return total


@table_grad.shape
def table_grad_shape(grad: Spec, ids: Spec, into: Spec) -> Spec:
    require(grad.rank == 2, "table_grad", "must be [M, D]", field="grad", given=grad)
    require(ids.shape == grad.shape[:1], "table_grad", f"must be [M] of grad {grad}", field="ids", given=ids)
    fits = into.rank == 2 and into.shape[1] == grad.shape[1]
    require(fits, "table_grad", f"must be [V, D] for grad {grad}", field="into", given=into)
    return into


@table_grad.cost
def table_grad_cost(grad: Spec, ids: Spec, into: Spec) -> Cost:
    return Cost(flops=grad.size, bytes=grad.nbytes + ids.nbytes + 2 * into.nbytes)


@table_grad.samples
def table_grad_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for tokens, table, dim in [(1, 1, 1), (33, 7, 65), (40, 600, 16), (5, 300, 64)]:
        yield (normal(rng, tokens, dim), integers(rng.integers(0, table, tokens)), normal(rng, table, dim)), {}
    yield (strided(rng, 3, 33), integers([6, 0, 6]), np.zeros((7, 33), np.float32)), {}
    yield (ugly(rng, 4, 65), integers([1, 4, 1, 1]), np.zeros((5, 65), np.float32)), {}


table_grad.no_gradient(SECOND)
table_grad.tolerance(f32=chain(64), because="one f32 chain over the tokens that took a row")


@op
def head_loss(
    x: Array, weight: Weight, targets: Integers, shares: Array, *, scale: float = 1.0, softcap: float = 0.0
) -> tuple[Array, Array]:
    """The loss of each row, and its gradient at x.  x [L, K], weight [V, K] of any type, targets, shares [L]
    -> [L], [L, K]

    Logits are x Wᵀ * scale, then capped where softcap is above 0. A row's loss is its share times
    log(sum of e^logit) - the target's logit. All logits together are never in memory.
    """
    matrix = wide(weight)
    check_rows("head_loss", "targets", targets, matrix.shape[0])
    raw = x @ matrix.T * scale
    logits = capped(raw, softcap) if softcap else raw
    highest = logits.max(axis=1, keepdims=True)
    powers = np.exp(logits - highest)
    total = powers.sum(axis=1, keepdims=True)
    picked = np.arange(len(x)), targets
    losses = shares * (highest[:, 0] + np.log(total[:, 0]) - logits[picked])
    to_logits = powers / total
    to_logits[picked] -= 1.0
    to_logits *= shares[:, None] * scale
    if softcap:
        to_logits *= 1.0 - (logits / softcap) ** 2
    return losses, to_logits @ matrix


@head_loss.shape
def head_loss_shape(
    x: Spec, weight: Spec, targets: Spec, shares: Spec, *, scale: float, softcap: float
) -> tuple[Spec, Spec]:
    fits = x.rank == 2 and weight.rank == 2 and weight.shape[1] == x.shape[1]
    require(fits, "head_loss", f"must be [V, K] for x [L, K] = {x}", field="weight", given=weight)
    for field, spec in (("targets", targets), ("shares", shares)):
        require(spec.shape == x.shape[:1], "head_loss", f"must be [L] of x {x}", field=field, given=spec)
    require(softcap >= 0, "head_loss", "must be 0 (none) or the largest logit", field="softcap", given=softcap)
    return x.like(x.shape[0]), x


@head_loss.cost
def head_loss_cost(x: Spec, weight: Spec, targets: Spec, shares: Spec, *, scale: float, softcap: float) -> Cost:
    return Cost(flops=6 * x.shape[0] * weight.size, bytes=2 * x.nbytes + 2 * weight.nbytes + 3 * targets.nbytes)


@head_loss.samples
def head_loss_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, vocabulary, k in [(1, 2, 1), (3, 65, 17), (5, 1000, 64), (130, 33, 8)]:
        targets = integers(rng.integers(0, vocabulary, rows))
        shares = np.abs(normal(rng, rows))
        yield (normal(rng, rows, k), normal(rng, vocabulary, k, scale=0.5), targets, shares), {}
    targets, shares = integers([7, 0, 64]), np.asarray([1.0, 0.0, 0.25], np.float32)  # a share of zero counts nothing
    yield (normal(rng, 3, 32), normal(rng, 65, 32), targets, shares), {"scale": 0.125}
    yield (normal(rng, 3, 32), normal(rng, 65, 32), targets, shares), {"softcap": 3.0}
    yield (strided(rng, 3, 32), normal(rng, 65, 32), targets, shares), {}
    tiny_to_one = normal(rng, 3, 32) * np.asarray([[1e-6], [1e-3], [1]], np.float32)
    yield (tiny_to_one, normal(rng, 65, 32), targets, shares), {}
    for dtype in ("f16", "bf16", *SCALES):
        matrix = weight(rng, dtype, 65, 512)
        yield (normal(rng, 3, 512, scale=0.2), matrix, targets, shares), {}


head_loss.no_gradient(SECOND)
head_loss.tolerance(f32=chain(1024), because="the error of logits, f32 chains over K, enters the exponent")


@op
def head_distill(
    x: Array,
    weight: Weight,
    targets: Integers,
    shares: Array,
    words: Integers,
    parts: Array,
    *,
    scale: float = 1.0,
    softcap: float = 0.0,
    temperature: float = 1.0,
) -> tuple[Array, Array]:
    """head_loss and a teacher's distribution over a few words, and the gradient of both at x.  x [L, K], weight [V, K]
    of any type, targets, shares [L], words, parts [L, M] -> [L], [L, K]

    To a row's loss comes the sum over m of parts[m] * (log(sum of e^(logit / temperature)) - logit[words[m]] /
    temperature): with parts that are a distribution, how many nats it takes to code the teacher's words.
    """
    matrix = wide(weight)
    check_rows("head_distill", "targets", targets, matrix.shape[0])
    check_rows("head_distill", "words", words, matrix.shape[0])
    raw = x @ matrix.T * scale
    logits = capped(raw, softcap) if softcap else raw
    picked, each = np.arange(len(x)), np.arange(len(x))[:, None]
    losses, to_logits = np.zeros_like(shares), np.zeros_like(logits)
    for by, ids, amounts in ((1.0, targets[:, None], shares[:, None]), (1.0 / temperature, words, parts)):
        flat, sums = logits * by, amounts.sum(axis=1)
        highest = flat.max(axis=1, keepdims=True)
        powers = np.exp(flat - highest)
        total = powers.sum(axis=1, keepdims=True)
        losses = losses + sums * (highest[:, 0] + np.log(total[:, 0])) - (amounts * flat[each, ids]).sum(axis=1)
        to_logits += powers / total * (sums[picked, None] * by)
        np.add.at(to_logits, (each, ids), -amounts * by)
    to_logits *= scale
    if softcap:
        to_logits *= 1.0 - (logits / softcap) ** 2
    return losses, to_logits @ matrix


@head_distill.shape
def head_distill_shape(
    x: Spec,
    weight: Spec,
    targets: Spec,
    shares: Spec,
    words: Spec,
    parts: Spec,
    *,
    scale: float,
    softcap: float,
    temperature: float,
) -> tuple[Spec, Spec]:
    fits = x.rank == 2 and weight.rank == 2 and weight.shape[1] == x.shape[1]
    require(fits, "head_distill", f"must be [V, K] for x [L, K] = {x}", field="weight", given=weight)
    for field, spec in (("targets", targets), ("shares", shares)):
        require(spec.shape == x.shape[:1], "head_distill", f"must be [L] of x {x}", field=field, given=spec)
    fits = words.rank == 2 and words.shape[0] == x.shape[0] and parts.shape == words.shape
    require(fits, "head_distill", f"must be [L, M] of x {x}, as parts are", field="words", given=f"{words}, {parts}")
    require(softcap >= 0, "head_distill", "must be 0 (none) or the largest logit", field="softcap", given=softcap)
    require(temperature > 0, "head_distill", "must be above zero", field="temperature", given=temperature)
    return x.like(x.shape[0]), x


@head_distill.cost
def head_distill_cost(
    x: Spec, weight: Spec, targets: Spec, shares: Spec, words: Spec, parts: Spec, **attrs: float
) -> Cost:
    read = 2 * x.nbytes + 2 * weight.nbytes + 3 * targets.nbytes + words.nbytes + parts.nbytes
    return Cost(flops=6 * x.shape[0] * weight.size, bytes=read)


@head_distill.samples
def head_distill_samples(rng: np.random.Generator) -> Iterator[Sample]:
    def taught(rows: int, vocabulary: int, most: int) -> tuple[np.ndarray, ...]:
        targets = integers(rng.integers(0, vocabulary, rows))
        words = integers(rng.integers(0, vocabulary, (rows, most)))
        return targets, np.abs(normal(rng, rows)), words, np.abs(normal(rng, rows, most))

    for rows, vocabulary, k, most in [(1, 2, 1, 1), (3, 65, 17, 4), (5, 1000, 64, 20), (130, 33, 8, 3)]:
        yield (
            (normal(rng, rows, k), normal(rng, vocabulary, k, scale=0.5), *taught(rows, vocabulary, most)),
            {"temperature": 2.0},
        )
    yield (normal(rng, 3, 32), normal(rng, 65, 32), *taught(3, 65, 5)), {"scale": 0.125, "temperature": 0.5}
    yield (normal(rng, 3, 32), normal(rng, 65, 32), *taught(3, 65, 5)), {"softcap": 3.0, "temperature": 4.0}
    yield (strided(rng, 3, 32), normal(rng, 65, 32), *taught(3, 65, 5)), {}
    nothing = integers([7, 0, 64]), np.zeros(3, np.float32), integers(np.ones((3, 2))), np.zeros((3, 2), np.float32)
    yield (normal(rng, 3, 32), normal(rng, 65, 32), nothing[0], np.ones(3, np.float32), *nothing[2:]), {}  # no teacher
    yield (normal(rng, 3, 32), normal(rng, 65, 32), *nothing[:2], *taught(3, 65, 2)[2:]), {}  # the teacher alone
    tiny_to_one = normal(rng, 3, 32) * np.asarray([[1e-6], [1e-3], [1]], np.float32)
    yield (tiny_to_one, normal(rng, 65, 32), *taught(3, 65, 5)), {}
    for dtype in ("f16", "bf16", *SCALES):
        matrix = weight(rng, dtype, 65, 512)
        yield (normal(rng, 3, 512, scale=0.2), matrix, *taught(3, 65, 5)), {"temperature": 2.0}


head_distill.no_gradient(SECOND)
head_distill.tolerance(f32=chain(1024), because="the error of logits, f32 chains over K, enters the exponent")
