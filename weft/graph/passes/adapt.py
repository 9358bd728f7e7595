"""Adapters: after every product of tokens with a weight, and after the embedding, an op applies the adapter of each
sequence."""

from dataclasses import replace

from weft.errors import InputError
from weft.graph.program import Instr, Program, Value, arrange
from weft.ops.spec import B, L, T, as_dtype

# A table is named by one of these and its weight's name. The table of an embedding is for the transposed weight.
TABLE, LOOKUP = "lora/", "lora_embedding/"


def adapt(program: Program) -> Program:
    """matmul(x, W, b) -> lora(matmul(x, W, b), x, table of W), then the activation; embedding(ids, W) ->
    lora_embedding(embedding(ids, W), …); `adapters` becomes one more input.

    The product itself does not change, so sequences without an adapter keep their bits.
    """
    names = {value.name for value in program.inputs}
    if not {"segments", "rows"} <= names or "adapters" in names:
        what = f"{program.name} must have the inputs segments and rows, and not adapters"
        raise InputError("adapt", what, given=sorted(names))
    values = {value.name: value for value in program.values}
    values["adapters"] = Value("adapters", "input", as_dtype("i32"), (B,))
    body: list[Instr] = []
    for number, instr in enumerate(program.body):
        if instr.op == "matmul" and _of_tokens(program, instr):
            body += _adapted(program, instr, str(number), values)
        elif instr.op == "embedding" and instr.inputs[0] == "ids":
            body += _looked_up(program, instr, str(number), values)
        else:
            body.append(instr)
    return arrange(program.name, values.values(), body)


def _of_tokens(program: Program, instr: Instr) -> bool:
    """Whether the rows of a product are tokens, or choices of tokens between experts."""
    return instr.inputs[3] is not None or program.table[str(instr.inputs[0])].shape[:-1] in ((T,), (L,))


def _adapted(program: Program, instr: Instr, fresh: str, values: dict[str, Value]) -> list[Instr]:
    x, weight, result = str(instr.inputs[0]), str(instr.inputs[1]), program.table[instr.outputs[0]]
    table = Value(TABLE + weight, "table", as_dtype("f32"), program.table[weight].shape)
    product = replace(result, name=f"%product{fresh}", kind="buffer")
    values[table.name], values[product.name] = table, product
    starts = instr.inputs[3]
    rows = "rows" if result.shape[0] == L else None
    if starts is not None:  # `group` made it, and says which token each row is of
        rows = program.body[program.writer[starts]].outputs[0]
    base = replace(instr, outputs=(product.name,), attrs={**instr.attrs, "activation": "none"})
    operands = (product.name, x, table.name, "segments", "adapters", rows, starts)
    if instr.attrs["activation"] == "none":
        return [base, Instr("lora", operands, instr.outputs, {})]
    sums = replace(product, name=f"%adapted{fresh}")
    values[sums.name] = sums
    after = Instr("activate", (sums.name,), instr.outputs, {"kind": instr.attrs["activation"]})
    return [base, Instr("lora", operands, (sums.name,), {}), after]


def _looked_up(program: Program, instr: Instr, fresh: str, values: dict[str, Value]) -> list[Instr]:
    weight, result = str(instr.inputs[1]), program.table[instr.outputs[0]]
    table = Value(LOOKUP + weight, "table", as_dtype("f32"), program.table[weight].shape[::-1])
    rows = replace(result, name=f"%rows{fresh}", kind="buffer")
    values[table.name], values[rows.name] = table, rows
    after = Instr("lora_embedding", (rows.name, "ids", table.name, "segments", "adapters"), instr.outputs, {})
    return [replace(instr, outputs=(rows.name,)), after]
