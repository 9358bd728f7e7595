"""What makes a program learn: trained matrices beside frozen products, and the loss in place of logits."""

from collections.abc import Mapping
from dataclasses import replace

from weft.dtype import DTYPES
from weft.errors import InputError, UnsupportedError
from weft.frozen import frozen
from weft.graph.program import Instr, Program, Value, arrange
from weft.ops.spec import Shape

DOWN, UP, MASK = "down.", "up.", "mask."
LOSS, TARGETS, SHARES = "loss", "targets", "shares"
WORDS, PARTS = "words", "parts"  # of a teacher
HEADS = ("head_loss", "head_distill")


@frozen
class LowRank:
    """A trained change of a weight [N, K]: scale * up [N, rank] down [rank, K]; of a stack, one of each matrix."""

    rank: int
    scale: float


def with_lora(program: Program, changes: Mapping[str, LowRank], *, masked: bool = False) -> Program:
    """Products with these weights are changed by matrices that are inputs: `down.WEIGHT` and `up.WEIGHT`.

    x Wᵀ becomes x Wᵀ + scale * (x downᵀ) upᵀ, before bias and activation, which must not be folded yet. If `masked`,
    the changes see x times `mask.WEIGHT`, an input of x's shape: dropout. The matrices of a stack [E, N, K] have each
    their own change: `down.WEIGHT` is [E, rank, K], `up.WEIGHT` [E, N, rank].
    """
    values, body, used = dict(program.table), [], set()
    for number, instr in enumerate(program.body):
        weight = str(instr.inputs[1]) if instr.op == "matmul" else ""
        if weight not in changes:
            body.append(instr)
            continue
        used.add(weight)
        change, x, result = changes[weight], str(instr.inputs[0]), program.table[instr.outputs[0]]
        *stack, rows, cols = program.table[weight].shape
        starts = instr.inputs[3]
        if (instr.inputs[2] is not None and starts is None) or instr.attrs["activation"] != "none":
            raise InputError("with_lora", f"the bias or activation of {weight} is folded already")
        if stack and masked:
            what = f"{weight} has the matrices of experts, which see all of their inputs"
            raise UnsupportedError("train", what, advice="leave dropout out where experts are adapted")
        short: Shape = (*result.shape[:-1], change.rank)
        frozen_part, low, scaled, high = (f"%lora{number}_{part}" for part in ("frozen", "low", "scaled", "high"))
        made: list[tuple[str, str, Shape]] = [
            ("input", DOWN + weight, (*stack, change.rank, cols)),
            ("input", UP + weight, (*stack, rows, change.rank)),
            ("buffer", frozen_part, result.shape),
            ("buffer", low, short),
            ("buffer", scaled, short),
            ("buffer", high, result.shape),
        ]
        values.update({name: Value(name, kind, DTYPES["f32"], shape) for kind, name, shape in made})
        body.append(replace(instr, outputs=(frozen_part,)))
        if masked:
            mask, seen = MASK + weight, f"%lora{number}_seen"
            values[mask] = Value(mask, "input", DTYPES["f32"], program.table[x].shape)
            values[seen] = Value(seen, "buffer", DTYPES["f32"], program.table[x].shape)
            body.append(Instr("mul", (x, mask), (seen,), {}))
            x = seen
        body += [
            Instr("product", (x, DOWN + weight, starts), (low,), {}),
            Instr("scale", (low,), (scaled,), {"by": change.scale}),
            Instr("product", (scaled, UP + weight, starts), (high,), {}),
            Instr("add", (frozen_part, high), instr.outputs, {}),
        ]
    missing = sorted(set(changes) - used)
    if missing:
        raise InputError("with_lora", "must be weights that rows are multiplied by", field="changes", given=missing)
    return arrange(program.name, values.values(), body)


def with_loss(program: Program, logits: str = "logits", *, words: int = 0, temperature: float = 1.0) -> Program:
    """The program with the loss of each row in place of its logits, which are never in memory together.

    `targets` and `shares`, new inputs, are the next token of each row and what the row's loss is multiplied by. With
    so many `words` of a teacher two more inputs, `words` and `parts`, are its likeliest words in each row and what each
    counts at the temperature. The head is a product, scaled or capped in any order that models have; one with a bias is
    refused.
    """
    table, head = program.table, program.body
    scale, cap, at = 1.0, 0.0, logits
    while head[program.writer[at]].op in ("scale", "softcap"):
        instr = head[program.writer[at]]
        if instr.op == "scale" and cap:
            raise _unsupported(program, "logits are capped, then scaled")
        scale = scale * instr.attrs["by"] if instr.op == "scale" else scale
        cap = instr.attrs["cap"] if instr.op == "softcap" else cap
        at = str(instr.inputs[0])
    last = head[program.writer[at]]
    if last.op != "matmul" or last.inputs[2] is not None or last.attrs["activation"] != "none":
        raise _unsupported(program, f"logits are made by {last.op}")
    x, weight = str(last.inputs[0]), last.inputs[1]
    rows = table[x].shape[0]
    values = {name: value for name, value in table.items() if name != logits}
    values[TARGETS] = Value(TARGETS, "input", DTYPES["i32"], (rows,))
    values[SHARES] = Value(SHARES, "input", DTYPES["f32"], (rows,))
    values[LOSS] = Value(LOSS, "output", DTYPES["f32"], (rows,))
    values["%to_x"] = Value("%to_x", "buffer", DTYPES["f32"], table[x].shape)
    gone = {program.writer[logits], program.writer[at]}
    body = [instr for index, instr in enumerate(program.body) if index not in gone and logits not in instr.operands]
    attrs = {"scale": scale, "softcap": cap}
    inputs: tuple[str | None, ...] = (x, weight, TARGETS, SHARES)
    if words:
        values[WORDS] = Value(WORDS, "input", DTYPES["i32"], (rows, words))
        values[PARTS] = Value(PARTS, "input", DTYPES["f32"], (rows, words))
        attrs, inputs = {**attrs, "temperature": temperature}, (*inputs, WORDS, PARTS)
    body.append(Instr(HEADS[bool(words)], inputs, (LOSS, "%to_x"), attrs))
    return arrange(program.name, values.values(), body)


def loss_seeds(program: Program) -> dict[str, str]:
    """What `differentiate` begins with in a program of `with_loss`: the value whose gradient the loss has found."""
    last = next(instr for instr in program.body if instr.op in HEADS)
    return {str(last.inputs[0]): last.outputs[1]}


def _unsupported(program: Program, what: str) -> UnsupportedError:
    return UnsupportedError("train", f"the head of {program.name} cannot be trained through: {what}")
