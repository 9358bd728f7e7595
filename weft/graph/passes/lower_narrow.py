"""Products of a training with frozen weights in a narrower arithmetic, which many machines compute faster than f32."""

from weft.graph.program import Instr, Program, arrange

NARROW = {op: f"{op}_narrow" for op in ("matmul", "matmul_back", "head_loss", "head_distill")}
WEIGHT = 1  # the operand


def lower_narrow(program: Program, to: str) -> Program:
    """The ops of NARROW -> the same in `to`, "f16" or "bf16". What chooses experts stays f32: rounding there would send
    tokens to others.

    Trained matrices, their gradients, norms, softmax and attention are other ops, and stay f32.
    """
    kept = _routing(program)
    body = [
        Instr(NARROW[instr.op], instr.inputs, instr.outputs, {**instr.attrs, "to": to})
        if instr.op in NARROW and instr.inputs[WEIGHT] not in kept
        else instr
        for instr in program.body
    ]
    return arrange(program.name, program.values, body)


def _routing(program: Program) -> set[str]:
    """The weights whose products say which experts a token goes to."""
    found: set[str] = set()
    wanted = [str(instr.inputs[0]) for instr in program.body if instr.op == "route"]
    while wanted:
        writer = program.writer.get(wanted.pop())
        if writer is None:
            continue
        instr = program.body[writer]
        if instr.op == "matmul":
            found.add(str(instr.inputs[WEIGHT]))
        elif instr.op in ("add", "scale", "reshape"):  # a bias beside the product, or what it is multiplied by
            wanted += instr.operands
    return found
