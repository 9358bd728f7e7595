"""Speed of single kernels: matrix products of every type at the sizes of a model, and every op of the catalogue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from weft.backends.cpu import CpuBackend
from weft.bench.cost import UNITS
from weft.bench.measure import Summary, rounded, summary
from weft.bench.roofs import Roofs, roof_label
from weft.dtype import DTYPES
from weft.frozen import frozen
from weft.graph.single import single
from weft.ops import catalogue
from weft.ops.quant import INT8_BLOCK
from weft.ops.registry import Cost, Op
from weft.ops.samples import normal, weight

TYPES = ("f32", "f16", "bf16", *INT8_BLOCK)
ROWS = (1, 16, 512)
OUTPUTS, INPUTS = 4096, 2048  # of the weight: 5 to 34 MB, larger than the second-level cache for every type
SECONDS, AT_LEAST = 0.15, 5


@frozen
class Kernel:
    """One kernel on one set of operands; `roof` is the lower of its two roofs, bandwidth and arithmetic."""

    op: str
    shape: str
    seconds: Summary
    cost: Cost
    share: float | None = None
    roof: str = ""

    @property
    def gflop_s(self) -> Summary:
        return summary(self.cost.flops / seconds / 1e9 for seconds in self.seconds.values)

    def as_json(self) -> dict[str, Any]:
        median = self.seconds.median
        found: dict[str, Any] = {
            "op": self.op,
            "shape": self.shape,
            "us": rounded(1e6 * median),
            "low": rounded(1e6 * self.seconds.low),
            "high": rounded(1e6 * self.seconds.high),
            "gflop_s": rounded(self.gflop_s.median),
            "gbyte_s": rounded(self.cost.bytes / median / 1e9),
        }
        return {**found, "share": round(self.share, 4), "roof": self.roof} if self.share is not None else found


def timed(run: Callable[[], float], seconds: float = SECONDS, at_least: int = AT_LEAST) -> Summary:
    """The seconds that `run` returns, over many calls after one warm-up call."""
    run()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < at_least or time.perf_counter() - start < seconds:
        times.append(run())
    return summary(times)


def products(
    roofs: Roofs, types: Sequence[str] = TYPES, rows: Sequence[int] = ROWS, outputs: int = OUTPUTS, inputs: int = INPUTS
) -> Iterator[Kernel]:
    """x [rows, inputs] times weights [outputs, inputs] of each type, with the kernel that models use for it."""
    backend = CpuBackend(roofs.level, threads=roofs.threads)
    ops = catalogue()
    for name in types:
        rng = np.random.default_rng(0)
        matrix = weight(rng, name, outputs, inputs)
        for count in rows:
            for op, compute in _ops_for(name):
                x = _activations(normal(rng, count, inputs), op, name)
                shape = f"{name} {count}×{inputs} · {outputs}"
                yield _with_roof(_run(backend, ops[op], (x, matrix, None), {}, shape), roofs, compute)


def _ops_for(name: str) -> list[tuple[str, str]]:
    """The products for a weight of this type, and what they round activations to."""
    if DTYPES[name].quantised:
        return [("matmul_q", "int8")]
    narrow = {"bf16": [("matmul_bf16", "bf16")], "f16": [("matmul_half", "f16")]}
    return [*narrow.get(name, []), ("matmul", "f32")]


def _activations(x: np.ndarray, op: str, name: str) -> Any:
    """x in the form the product takes."""
    if op == "matmul_q":
        return catalogue()["quantise_rows"](x, block=INT8_BLOCK[name])
    return catalogue()["round_rows"](x) if op == "matmul_bf16" else x


def _run(backend: CpuBackend, op: Op, operands: Sequence[Any], attrs: dict[str, Any], shape: str) -> Kernel:
    bound = single(op, operands, attrs)
    states = {key: backend.state_from(value) for key, value in bound.states.items()}
    executable = backend.compile(bound.program, bound.weights, states)

    def seconds() -> float:  # of the kernel alone, by the core's clock
        return sum(nanoseconds for _, nanoseconds in executable.profile(bound.inputs)) / 1e9

    return Kernel(op.name, shape, timed(seconds), op.cost_of(*operands, **attrs))


def _with_roof(kernel: Kernel, roofs: Roofs, compute: str) -> Kernel:
    """The kernel with its share of the lower of two roofs: reading its operands, or arithmetic."""
    read = roofs.read(kernel.cost.bytes).high / kernel.cost.bytes
    found = roofs.best(*UNITS[compute])
    counts = found[1].high / kernel.cost.flops if found else float("inf")
    name = roof_label("read", roofs.size(kernel.cost.bytes)) if read < counts or not found else found[0]
    share = 1 / kernel.seconds.median / min(read, counts)
    return Kernel(kernel.op, kernel.shape, kernel.seconds, kernel.cost, share, name)


def every_op(roofs: Roofs) -> Iterator[Kernel]:
    """Every op of the catalogue on its largest sample. Samples are small: this finds regressions, not limits."""
    backend = CpuBackend(roofs.level, threads=roofs.threads)
    for name, op in catalogue().items():
        if name == "reshape" or not backend.supports(name, ()):
            continue
        samples = list(op.samples_from(np.random.default_rng(0)))
        operands, attrs = max(samples, key=lambda sample: op.cost_of(*sample[0], **sample[1]).bytes)
        yield _run(backend, op, operands, attrs, "largest sample")
