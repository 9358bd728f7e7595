"""Trace a few ops into a program of your own, print it, and run it on every backend of this machine."""

import numpy as np

from weft.backends import backends_present
from weft.graph import T, Trace
from weft.graph.passes import optimise
from weft.graph.plan import plan
from weft.graph.text import to_text
from weft.ops import activate, matmul, rms_norm

with Trace("tiny") as trace:
    x = trace.input("x", (T, 8))
    y = rms_norm(x, trace.weight("norm", (8,)), eps=1e-5)
    trace.output("y", activate(matmul(y, trace.weight("w", (4, 8))), kind="silu"))
program = plan(optimise(trace.program()))
print(to_text(program))

rng = np.random.default_rng(0)
weights = {"norm": np.ones(8, np.float32), "w": rng.standard_normal((4, 8)).astype(np.float32)}
inputs = {"x": rng.standard_normal((3, 8)).astype(np.float32)}
for backend in backends_present():
    print(f"{backend!r:<14}", backend.compile(program, weights, {}).run(inputs)["y"][0])
