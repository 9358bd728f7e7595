"""Products with float weights and attention in bfloat16: half the bytes, and the type that matrix units multiply.

Rows are rounded once for all the products that read them. A result that only products or attention read is rounded by
the op that computes it.
"""

from dataclasses import replace
from typing import cast

from weft.graph.program import Instr, Program, Value, arrange
from weft.ops.attention import BF16_DIM
from weft.ops.matmul import takes_bf16
from weft.ops.registry import find
from weft.ops.spec import as_dtype

FLOATS = ("f32", "f16", "bf16")
SINKS = 4  # an operand of attention that the ops for whole sequences do not have


def lower_bf16(program: Program, *, split: bool = False) -> Program:
    """matmul -> round_rows and matmul_bf16, for every float matrix that only products read, or that is bf16
    already; attention -> attention_bf16, where every token sees its whole sequence.

    With `split` values and weights are sums of two bfloat16 and attention stays f32: results are close to f32.
    """
    weights = _matrices(program, split)
    products = {i for i, instr in enumerate(program.body) if instr.op == "matmul" and instr.inputs[1] in weights}
    attentions = set() if split else {i for i, instr in enumerate(program.body) if sees_all(program, instr)}
    narrow = {  # results of products that only products read
        program.body[i].outputs[0] for i in products if _only_read_by(program, program.body[i].outputs[0], products)
    }
    for i in attentions:
        narrow |= _made_rounded(program, i, products) | _left_rounded(program, i, products)
    values = {value.name: _stored(value, weights | narrow, split) for value in program.values}
    body: list[Instr] = []
    rows: dict[str, str] = {name: name for name in narrow}  # activations -> the name of their rounded rows
    for i, instr in enumerate(program.body):
        if i in attentions:
            attrs = {"scale": instr.attrs["scale"], "rounded": instr.outputs[0] in narrow}
            body.append(Instr("attention_bf16", without_sinks(instr), instr.outputs, attrs))
            continue
        if i not in products:
            body.append(instr)
            continue
        x = str(instr.inputs[0])
        if x not in rows:
            spec = find("round_rows").infer([program.table[x].spec], {"split": split})[0]
            rows[x] = f"%rows{len(rows)}"
            values[rows[x]] = Value(rows[x], "buffer", spec.dtype, spec.shape)
            body.append(Instr("round_rows", (x,), (rows[x],), {"split": split}))
        attrs = {**instr.attrs, "rounded": instr.outputs[0] in narrow, "split": split}
        body.append(Instr("matmul_bf16", (rows[x], *instr.inputs[1:]), instr.outputs, attrs))
    return arrange(program.name, list(values.values()), body)


def _matrices(program: Program, split: bool) -> set[str]:
    """The weights whose products become bfloat16."""
    found = set()
    for instr in program.body:
        if instr.op != "matmul":
            continue
        weight = program.table[str(instr.inputs[1])]
        depth = cast(int, weight.shape[-1]) * (2 if split else 1)
        if may_become(program, weight, "bf16") and takes_bf16(depth, split):
            found.add(weight.name)
    return found


def may_become(program: Program, weight: Value, dtype: str) -> bool:
    """Whether a weight may be stored as `dtype`: it already is, or it is a float matrix that only products read."""
    alone = all(program.body[i].op == "matmul" for i in program.readers[weight.name])
    return weight.dtype.name == dtype or (weight.dtype.name in FLOATS and alone)


def _only_read_by(program: Program, name: str, readers: set[int]) -> bool:
    return program.table[name].kind == "buffer" and bool(readers.issuperset(program.readers[name]))


def _stored(value: Value, names: set[str], split: bool) -> Value:
    if value.name not in names:
        return value
    return replace(value, dtype=as_dtype("bf16"), shape=(*value.shape[:-1], value.shape[-1] * (2 if split else 1)))


def sees_all(program: Program, instr: Instr) -> bool:
    """Whether this is attention of every token to its whole sequence, with heads that fit the ops for it."""
    if instr.op != "attention" or any(instr.attrs[key] for key in ("causal", "window", "softcap")):
        return False
    if instr.inputs[SINKS] is not None:
        return False
    dim = program.table[str(instr.inputs[0])].shape[2]
    return isinstance(dim, int) and dim <= BF16_DIM


def without_sinks(instr: Instr) -> tuple[str | None, ...]:
    """The operands of an attention for an op of whole sequences."""
    return (*instr.inputs[:SINKS], *instr.inputs[SINKS + 1 :])


def _made_rounded(program: Program, at: int, products: set[int]) -> set[str]:
    """Names of queries, keys and values of the attention at `at` and of the products they are reshapes of, if all
    three are results of products that nothing else reads; else nothing.
    """
    names: set[str] = set()
    for name in map(str, program.body[at].inputs[:3]):
        shaped = program.writer.get(name)
        if shaped is None or program.body[shaped].op != "reshape" or program.only_reader(name) != at:
            return set()
        flat = str(program.body[shaped].inputs[0])
        if program.writer.get(flat) not in products or program.only_reader(flat) != shaped:
            return set()
        names |= {name, flat}
    return names


def _left_rounded(program: Program, at: int, products: set[int]) -> set[str]:
    """Names of the result of the attention at `at` and of its reshape, if only products read that; else nothing."""
    result = program.body[at].outputs[0]
    reader = program.only_reader(result)
    if reader is None or program.body[reader].op != "reshape":
        return set()
    flat = program.body[reader].outputs[0]
    return {result, flat} if _only_read_by(program, flat, products) else set()
