"""Remove instructions whose results are never read, then weights that are never read."""

from weft.graph.program import Program, arrange


def dead_code(program: Program) -> Program:
    """The program with only what an output or a state depends on. Inputs and states stay: they are its signature."""
    needed = {value.name for value in program.outputs}
    body = []
    for instr in reversed(program.body):
        if instr.meaning.effect or needed.intersection(instr.outputs):
            needed.update(instr.operands)
            body.append(instr)
    values = [value for value in program.values if value.kind != "weight" or value.name in needed]
    return arrange(program.name, values, reversed(body))
