"""Instructions that one dispatch does together: a dispatch takes microseconds, however little it does.

The program stays as it is planned. Moving an instruction, or reading an operand later than it says, is allowed where no
instruction between touches that memory; otherwise the instructions stay apart. No bit changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.backends.base import fixed
from weft.backends.webgpu.launch import KERNELS, WIDE_NORM, Call, Launch, count, lanes_for
from weft.backends.webgpu.products import PRODUCTS, Multiply, Norm, Rows, multiply, rows_that_norm
from weft.frozen import frozen
from weft.graph.program import Instr, Program

MOST_JOINED = 3  # products that one dispatch computes: lib/finish.wgsl


@frozen(eq=False)
class Unit:
    """One instruction, or several: `also` follow `instr` in one dispatch.

    A product has products of the same operand, a gate or a sum; a rope_write has the norms of queries and keys.
    `sum_done`: of an add_rms_norm only the norm is left. `folded`: products of few rows compute this norm themselves.
    `norm`: the norm of a product's operand, and what it is the norm of.
    """

    instr: Instr
    also: tuple[Instr, ...] = ()
    sum_done: bool = False
    folded: bool = False
    norm: tuple[Instr, str] | None = None


class Fusing:
    """Finds the units of a program whose weights and states are `bound`."""

    def __init__(self, program: Program, bound: Mapping[str, Any]) -> None:
        self._program = program
        self._bound = bound
        self._units: dict[int, Unit] = {index: Unit(instr) for index, instr in enumerate(program.body)}

    def units(self) -> list[Unit]:
        for index in range(len(self._program.body)):
            if index in self._units:
                self._join(index)
        for index, instr in enumerate(self._program.body):
            if instr.op in ("add", "add_rms_norm"):
                self._add(index)
        # Those that read an operand later come last: what was moved is seen where it is now.
        for index, instr in enumerate(self._program.body):
            if instr.op == "rope_write":
                self._turn(index)
            elif instr.op in ("rms_norm", "add_rms_norm") and index in self._units:
                self._fold(index)
        return [self._units[index] for index in sorted(self._units)]

    def _region(self, name: str) -> int | str:
        """Memory that values may share."""
        slot = self._program.table[name].slot
        return name if slot is None else slot

    def _untouched(self, names: Sequence[str], first: int, last: int, *group: int, written: bool = False) -> bool:
        """Whether no instruction between, but for the group, touches the memory of `names`; `written`: writes it."""
        regions = {self._region(name) for name in names}
        for index in range(first + 1, last):
            instr = self._program.body[index]
            if index in group or self._still(instr):
                continue
            touched = instr.outputs if written else (*instr.outputs, *instr.operands)
            moved = self._units[index].also if index in self._units else ()  # they write here, not where they stand
            if any(self._region(name) in regions for name in (*touched, *(n for one in moved for n in one.outputs))):
                return False
        return True

    def _still(self, instr: Instr) -> bool:
        """Whether it is another name for the same memory."""
        return instr.op == "reshape" and self._region(str(instr.inputs[0])) == self._region(instr.outputs[0])

    def _join(self, index: int) -> None:
        """Products of one operand, with weights one after another in one buffer; and the gate of two of them."""
        first = self._program.body[index]
        if first.op not in PRODUCTS or not self._alone(first):
            return
        group, end = [index], self._rows(first)
        for reader in self._program.readers[str(first.inputs[0])]:
            instr = self._program.body[reader]
            if reader <= index or len(group) == MOST_JOINED or instr.op != first.op or not self._alone(instr):
                continue
            rows, same = self._rows(instr), self._like(first, instr)
            free = self._untouched(instr.outputs, index, reader, *group)
            if same and free and rows.buffer is end.buffer and rows.start == end.start + end.rows:
                group.append(reader)
                end = rows
        results = [self._region(self._program.body[one].outputs[0]) for one in group]
        if len(group) == 1 or len({*results, self._region(str(first.inputs[0]))}) != len(group) + 1:
            return
        also = [self._program.body[one] for one in group[1:]]
        for one in group[1:]:
            del self._units[one]
        gate = self._gate(index, group)
        if gate is not None:
            also.append(self._program.body[gate])
            del self._units[gate]
        self._units[index] = Unit(first, tuple(also))

    def _gate(self, index: int, group: Sequence[int]) -> int | None:
        """The only reader of the two products of a group, where it is their gate."""
        products = [self._program.body[one] for one in group]
        names = [one.outputs[0] for one in products]
        readers = {self._program.only_reader(name) for name in names}
        (gate,) = readers if len(readers) == 1 else (None,)
        if gate is None or len(group) != 2 or any(one.attrs["activation"] != "none" for one in products):
            return None
        instr = self._program.body[gate]
        if instr.op != "gated" or list(instr.inputs) != names or self._widths(products[0]) != self._widths(products[1]):
            return None
        x = self._region(str(products[0].inputs[0]))
        free = self._untouched(instr.outputs, index, gate, *group)
        return gate if free and self._region(instr.outputs[0]) != x else None

    def _alone(self, product: Instr) -> bool:
        """Whether a product's weight is in one piece."""
        weight = self._bound.get(str(product.inputs[1]))
        return weight is not None and len(weight.parts) == 1 and not grouped(product)

    def _rows(self, product: Instr) -> Rows:
        (part,) = self._bound[str(product.inputs[1])].parts
        return part

    def _widths(self, product: Instr) -> int:
        return fixed(self._program.table[str(product.inputs[1])].shape)[0]

    def _like(self, one: Instr, other: Instr) -> bool:
        """Whether two products have the same type of weight, activation, and a bias or none."""
        weights = [self._bound[str(instr.inputs[1])] for instr in (one, other)]
        kinds = [(weight.stored, weight.stride, weight.far) for weight in weights]
        biases = [len(instr.inputs) > 2 and instr.inputs[2] is not None for instr in (one, other)]
        return kinds[0] == kinds[1] and biases[0] == biases[1] and one.attrs == other.attrs

    def _add(self, index: int) -> None:
        """A sum with the result of a product that nothing else reads."""
        instr, table = self._program.body[index], self._program.table
        x, y = str(instr.inputs[0]), str(instr.inputs[1])
        if table[x].spec != table[y].spec or "weight" in (table[x].kind, table[y].kind) or x == y:
            return
        total = instr.outputs[0]
        for mine, other in ((y, x), (x, y)):
            at = self._program.writer.get(mine, -1)
            unit = self._units.get(at)
            if unit is None or not plain_product(unit.instr) or unit.also or self._program.only_reader(mine) != index:
                continue
            known = self._program.writer.get(other, -1) < at
            operand = self._region(str(unit.instr.inputs[0]))
            if known and self._untouched([total], at, index) and operand != self._region(total):
                self._units[at] = Unit(unit.instr, (instr,))
                if instr.op == "add":
                    del self._units[index]
                else:
                    self._units[index] = Unit(instr, sum_done=True)
                return

    def _turn(self, index: int) -> None:
        """The norms of queries and keys, where only the rotation reads them."""
        instr = self._program.body[index]
        found = [self._program.writer.get(str(name), -1) for name in instr.inputs[:2]]
        norms = [self._program.body[at] for at in found if at >= 0]
        if len(norms) != 2 or any(one.op != "rms_norm" for one in norms):
            return
        (dim,) = fixed(self._program.table[str(instr.inputs[0])].shape[-1:])
        sources = [str(one.inputs[0]) for one in norms]
        for at, norm, source in zip(found, norms, sources):
            alone = self._program.only_reader(norm.outputs[0]) == index and dim < WIDE_NORM
            # What it reads must be as it was until then, and at most overwritten by itself.
            if not alone or not self._untouched([source], at, index, *found, written=True):
                return
        others = {self._region(sources[1]), self._region(str(instr.inputs[2]))}
        if self._region(instr.outputs[0]) in others:
            return
        for at in found:
            del self._units[at]
        self._units[index] = Unit(instr, tuple(norms))

    def _fold(self, index: int) -> None:
        """A norm that only products read."""
        unit = self._units[index]
        instr = unit.instr
        if instr.op == "add_rms_norm" and not unit.sum_done:
            return
        source = instr.outputs[0] if unit.sum_done else str(instr.inputs[0])
        if self._program.table[source].kind not in ("buffer", "input"):
            return
        result = instr.outputs[-1]
        products = [at for at, one in self._units.items() if plain_product(one.instr) and one.instr.inputs[0] == result]
        inside = {id(each) for at in products for each in (self._units[at].instr, *self._units[at].also)}
        readers = [self._program.body[at] for at in self._program.readers[result]]
        if (
            not products
            or self._program.table[result].kind != "buffer"
            or any(id(one) not in inside for one in readers)
            or any(self._bound[str(self._units[at].instr.inputs[1])].far for at in products)
        ):
            return
        written = {self._region(name) for at in products for name in self._written(self._units[at])}
        if self._region(source) in written or not self._untouched(
            [source], index, max(products), *products, written=True
        ):
            return
        self._units[index] = replace(unit, folded=True)
        for at in products:
            self._units[at] = replace(self._units[at], norm=(instr, source))

    def _written(self, unit: Unit) -> tuple[str, ...]:
        last = unit.also[-1] if unit.also else unit.instr
        if last.op in ("gated", "add"):
            return last.outputs
        if last.op == "add_rms_norm":
            return last.outputs[:1]
        return tuple(one.outputs[0] for one in (unit.instr, *unit.also))


def grouped(product: Instr) -> bool:
    """Whether the rows of a product have matrices of a stack."""
    return len(product.inputs) > 3 and product.inputs[3] is not None


def plain_product(instr: Instr) -> bool:
    return instr.op in PRODUCTS and not grouped(instr)


def launches(unit: Unit, call: Any) -> Iterator[Launch]:
    """The dispatches of a unit; `call` makes the Call of an instruction."""
    instr = unit.instr
    if instr.op in PRODUCTS and (unit.also or unit.norm):
        yield from _product(unit, call)
    elif instr.op == "rope_write" and unit.also:
        yield from _turned(unit, call)
    elif instr.op in ("rms_norm", "add_rms_norm") and (unit.folded or unit.sum_done):
        yield from _norm(unit, call)
    else:
        mine: Call = call(instr)
        yield from mine.device.kernels[instr.op](mine)


def _product(unit: Unit, call: Any) -> Iterator[Launch]:
    yield from fused_product(unit, call).launches(call(unit.instr).device.products)


def fused_product(unit: Unit, call: Any) -> Multiply:
    mine: Call = call(unit.instr)
    product = multiply(mine)
    biases = [(product.bias, product.results[0][1])]
    for one in unit.also:
        other: Call = call(one)
        if one.op in PRODUCTS:
            more = multiply(other)
            (before,), (after,) = product.parts, more.parts
            part = Rows(0, before.rows + after.rows, before.buffer, before.start)
            product = replace(product, parts=(part,), results=(*product.results, *more.results))
            biases.append((more.bias, more.results[0][1]))
        elif one.op == "gated":
            width = product.results[0][1]
            product = replace(product, paired=True, activation=one.attrs["kind"], results=((other.out(), width),))
        else:
            residual = 1 if one.inputs[0] == unit.instr.outputs[0] else 0
            product = replace(product, residual=other.at(residual), results=((other.out(), product.results[0][1]),))
    if product.bias and len(biases) > 1:
        product = replace(product, bias=(mine.device.joined([(bias[0], 4 * width) for bias, width in biases]),))
    if unit.norm is not None:
        norm: Call = call(unit.norm[0])
        gain = norm.vector(len(norm.values) - 1)
        product = replace(product, norm=Norm(norm.place(unit.norm[1]), gain, float(norm.attrs["eps"])))
    return product


def _turned(unit: Unit, call: Any) -> Iterator[Launch]:
    """A rope_write that reads queries and keys before their norms."""
    (launch,) = KERNELS["rope_write"](call(unit.instr))
    q, k = (call(one) for one in unit.also)
    params = {**launch.params, "q": q.at(0), "k": k.at(0)}
    params |= {"q_eps": float(q.attrs["eps"]), "k_eps": float(k.attrs["eps"])}
    buffers = (q.vector(1), k.vector(1), *launch.buffers)
    yield replace(launch, defines=(*launch.defines, ("NORMED", "1")), params=params, buffers=buffers)


def _norm(unit: Unit, call: Any) -> Iterator[Launch]:
    """An rms_norm, or the one of an add_rms_norm, for as many rows as no product computes it for."""
    mine: Call = call(unit.instr)
    *leading, cols = mine.shape(0)
    rows = count(leading)
    source = mine.out() if unit.sum_done else mine.at(0)
    places = {"x": source, "out": mine.out(len(mine.results) - 1), "rows": rows, "cols": cols}
    places["eps"] = float(mine.attrs["eps"])
    least = rows_that_norm(mine.device.products) + 1 if unit.folded else 0
    gain = (mine.vector(len(mine.values) - 1),)
    yield Launch("rms_norm", lanes_for("rms_norm", cols), places, gain, rows, least=least)
