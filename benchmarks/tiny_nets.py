"""A network of 784-128-64-10 with the same weights in weft and other engines: one row, and 1,000.

python benchmarks/tiny_nets.py weft
PEER_PYTHON benchmarks/tiny_nets.py numpy|sklearn|onnxruntime|torch

Prints microseconds a call: the least and the median of many short rounds, in which a call is repeated. `--seconds` is
for each of the three measurements. Every engine has the threads it takes by itself; `--threads` sets another number for
weft, ONNX Runtime and torch.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

SIZES = (784, 128, 64, 10)


def weights() -> list[tuple[np.ndarray, np.ndarray]]:
    """[outputs, inputs] and [outputs] of every layer."""
    draw = np.random.default_rng(0)
    return [
        (
            (draw.standard_normal((m, n)) * (2 / (n + m)) ** 0.5).astype(np.float32),
            draw.standard_normal(m).astype(np.float32),
        )
        for n, m in pairwise(SIZES)
    ]


def rows(count: int, filled: float = 1.0) -> np.ndarray:
    """Rows of normal numbers, of which a part is not zero."""
    draw = np.random.default_rng(1)
    return np.asarray(
        draw.standard_normal((count, SIZES[0])) * (draw.random((count, SIZES[0])) < filled), dtype=np.float32
    )


def of_weft(threads: int | None) -> dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]:
    from weft.tiny import Layer, Tiny

    kinds = ("relu", "relu", "softmax")
    net = Tiny.of([Layer(weight, bias, kind) for (weight, bias), kind in zip(weights(), kinds)])
    made = {"f32": net.compiled(threads=threads), "int8": net.compiled(int8=True, threads=threads)}
    return {name: (one.row, one) for name, one in made.items()}


def of_numpy(threads: int | None) -> dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]:
    layers = [(np.ascontiguousarray(weight.T), bias) for weight, bias in weights()]

    def forward(x: np.ndarray) -> np.ndarray:
        for weight, bias in layers[:-1]:
            x = np.maximum(x @ weight + bias, 0)
        weight, bias = layers[-1]
        x = x @ weight + bias
        powers = np.exp(x - x.max(-1, keepdims=True))
        return np.asarray(powers / powers.sum(-1, keepdims=True))

    return {"f32": (forward, forward)}


def of_sklearn(threads: int | None) -> dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]:
    from sklearn.neural_network import MLPClassifier

    made = MLPClassifier(SIZES[1:-1], max_iter=1)
    made.fit(rows(20), np.arange(20) % SIZES[-1])
    made.coefs_ = [weight.T.copy() for weight, _ in weights()]
    made.intercepts_ = [bias for _, bias in weights()]
    return {"f32": (lambda x: made.predict_proba(x.reshape(1, -1)), made.predict_proba)}


def of_torch(threads: int | None) -> dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]:
    import torch

    if threads:
        torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    parts: list[Any] = []
    for (weight, bias), last in zip(weights(), (False, False, True)):
        part = torch.nn.Linear(weight.shape[1], weight.shape[0])
        part.weight.copy_(torch.from_numpy(weight))
        part.bias.copy_(torch.from_numpy(bias))
        parts += [part, torch.nn.Softmax(-1) if last else torch.nn.ReLU()]
    made = torch.nn.Sequential(*parts).eval()

    def forward(x: np.ndarray) -> np.ndarray:
        return made(torch.from_numpy(x)).numpy()

    script = torch.jit.freeze(torch.jit.script(made))
    return {"f32": (forward, forward), "f32 jit": ((lambda x: script(torch.from_numpy(x)).numpy()),) * 2}


def of_onnxruntime(threads: int | None) -> dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    made = onnxruntime.InferenceSession(onnx_model(), options, providers=["CPUExecutionProvider"])
    return {"f32": (lambda x: made.run(None, {"x": x.reshape(1, -1)})[0], lambda x: made.run(None, {"x": x})[0])}


def field(number: int, value: int | bytes | str) -> bytes:
    """A field of a protocol buffer: a whole number, or bytes with their length."""

    def whole(n: int) -> bytes:
        out = b""
        while n > 127:
            out, n = out + bytes([n & 127 | 128]), n >> 7
        return out + bytes([n])

    if isinstance(value, int):
        return whole(number << 3) + whole(value)
    data = value.encode() if isinstance(value, str) else value
    return whole(number << 3 | 2) + whole(len(data)) + data


def onnx_model() -> bytes:
    """The network as ONNX: Gemm, Relu and Softmax nodes of operator set 13."""

    def tensor(name: str, array: np.ndarray) -> bytes:
        dims = b"".join(field(1, n) for n in array.shape)
        return dims + field(2, 1) + field(8, name) + field(9, array.tobytes())

    def node(kind: str, inputs: list[str], output: str, attributes: bytes = b"") -> bytes:
        return field(1, b"".join(field(1, one) for one in inputs) + field(2, output) + field(4, kind) + attributes)

    def value(name: str, width: int) -> bytes:
        dims = field(1, field(2, "rows")) + field(1, field(1, width))
        return field(1, name) + field(2, field(1, field(1, 1) + field(2, dims)))

    transposed = field(5, field(1, "transB") + field(3, 1) + field(20, 2))
    graph, before = b"", "x"
    for number, (weight, bias) in enumerate(weights()):
        last = number == len(SIZES) - 2
        sums, after = f"s{number}", "y" if last else f"a{number}"
        graph += node("Gemm", [before, f"w{number}", f"b{number}"], sums, transposed)
        graph += node("Softmax" if last else "Relu", [sums], after)
        graph += field(5, tensor(f"w{number}", weight)) + field(5, tensor(f"b{number}", bias))
        before = after
    graph += field(2, "tiny") + field(11, value("x", SIZES[0])) + field(12, value("y", SIZES[-1]))
    return field(1, 8) + field(8, field(1, "") + field(2, 13)) + field(7, graph)


def timed(call: Callable[[Any], Any], x: np.ndarray, each: int, seconds: float) -> dict[str, float]:
    """Microseconds of a call, over rounds of `each` calls."""
    for _ in range(3):
        call(x)
    found = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found) < 3:
        began = time.perf_counter()
        for _ in range(each):
            call(x)
        found.append((time.perf_counter() - began) / each * 1e6)
    return {"least": round(min(found), 2), "median": round(statistics.median(found), 2)}


def digest(call: Callable[[Any], Any]) -> str:
    """A few outputs in short, to see that all engines compute the same."""
    found = np.asarray(call(rows(1000)), dtype=np.float64)
    return " ".join(f"{value:.5f}" for value in (found.max(1).mean(), found[0, 0], found[-1, -1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engines = {
        "weft": of_weft,
        "numpy": of_numpy,
        "sklearn": of_sklearn,
        "onnxruntime": of_onnxruntime,
        "torch": of_torch,
    }
    parser.add_argument("who", choices=[*engines])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=None)
    given = parser.parse_args()
    for name, (one, many) in engines[given.who](given.threads).items():
        line: dict[str, Any] = {"who": given.who, "arithmetic": name, "outputs": digest(many)}
        line["row_us"] = timed(one, rows(1)[0], 100, given.seconds)
        line["row_of_zeros_us"] = timed(
            one, rows(1, 0.19)[0], 100, given.seconds
        )  # as many as a picture of a digit has
        line["rows_1000_us"] = timed(many, rows(1000), 1, given.seconds)
        print(json.dumps(line))


if __name__ == "__main__":
    main()
