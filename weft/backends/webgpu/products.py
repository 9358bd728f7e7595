"""Products with weights: which shader takes how many rows, and what is done before and after in the same dispatch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from weft.backends.webgpu.launch import MANY, PART, WIDE_NORM, Call, Defines, Form, Launch, count, kernel
from weft.frozen import frozen

PRODUCTS = {"matmul": "f32", "matmul_half": "f16", "matmul_bf16": "bf16"}  # ops, and what they compute with


@frozen
class Product:
    """A shader for products of `least` to `most` rows: a workgroup takes so many rows and columns."""

    shader: str
    rows: int
    columns: int
    defines: Defines = ()
    least: int = 0
    most: int = MANY
    norms: bool = False  # whether it computes the norm of its operand itself
    launches: Callable[..., Iterator[Launch]] | None = None  # instead of one launch, in its own way


def _tile(rows: int, columns: int, lanes: int) -> Defines:
    """The memory of a tile, and how often all lanes bring four numbers of it."""
    sizes = {
        "XS": PART * rows,
        "WS": PART * columns,
        "LANES": lanes,
        "XN": rows * 8 // lanes,
        "WN": columns * 8 // lanes,
    }
    return tuple((name, str(size)) for name, size in sizes.items())


# All add up in the same order, so a row's result does not depend on which one is used.
PLAIN = Product("matmul", 4, 64)  # for software devices
LARGE = Product("matmul_tile", 64, 64, _tile(64, 64, 256), least=49)
SMALL = Product("matmul_tile", 32, 16, (("SMALL", "1"), *_tile(32, 16, 128)), 9, 48)
ROW = Product("matmul_row", 1, 8, most=8, norms=True)
SOFTWARE_PRODUCTS = (PLAIN,)
GPU_PRODUCTS = (ROW, SMALL, LARGE)


def shaders(products: Sequence[Product]) -> Sequence[Product]:
    """Those that compute in f32 for one matrix or many: CUDA's own know one, in halves."""
    return [one for one in products if one.launches is None] or GPU_PRODUCTS


def rows_that_norm(products: Sequence[Product]) -> int:
    """Up to how many rows a product computes the norm of its operand itself."""
    return max((one.most for one in products if one.norms), default=0)


@frozen(eq=False)
class Rows:
    """Rows of a matrix in a buffer, from row `start` on: columns `first` to `first + rows` of a result."""

    first: int
    rows: int
    buffer: Any
    start: int = 0


@frozen(eq=False)
class Norm:
    """What x is before its rms_norm, for products of few rows that compute it themselves."""

    source: Form
    gain: Any
    eps: float


@frozen(eq=False)
class Groups:
    """Where the rows of each matrix of a stack begin [matrices + 1]."""

    starts: Form
    matrices: int


@frozen(eq=False)
class Multiply:
    """act(x Wᵀ + b): W in several buffers, or several matrices in one, each with its own result [rows, width].

    `paired`: W is a gate and what it lets through, one after another, and the result is act(gate) * up. `groups`: W is
    a stack of matrices, of which every row has its own.
    """

    x: Form
    rows: Form
    depth: int
    stored: str
    stride: int
    parts: tuple[Rows, ...]
    results: tuple[tuple[Form, int], ...]
    bias: tuple[Any, ...] = ()
    activation: str = "none"
    paired: bool = False
    residual: Form | None = None
    norm: Norm | None = None
    groups: Groups | None = None
    scratch: Form = 0  # where memory begins that a product may use, in words
    compute: str = "f32"  # "f16": x is rounded to halves; "bf16": x is bfloat16 where it lies
    rounded: bool = False  # whether results are stored in bfloat16
    far: bool = False  # whether weights are not what two halves have

    def launches(self, products: Sequence[Product]) -> Iterator[Launch]:
        defines: Defines = (("DTYPE", self.stored), ("ACTIVATION", self.activation), ("BIAS", str(len(self.bias))))
        defines += (("WHOLE", str(self.depth % PART == 0)), ("DEPTH", "depth"), ("PAIRED", str(self.paired)))
        defines += (("OUTPUTS", str(len(self.results))), ("ADD", str(self.residual is not None)))
        if self.compute != "f32":
            defines += (("SINGLE", "1"), ("BARE", str(self.compute == "bf16")), ("ROUNDED", str(self.rounded)))
        width = sum(size for _, size in self.results)
        unit = 2 if self.rounded else 1  # places of results are counted in numbers
        places: dict[str, Any] = {"out": unit * self.results[0][0], "rows": self.rows, "depth": self.depth}
        places |= {"width": width, "stride": self.stride}
        edge = 0
        for index, (place, _) in enumerate(self.results):
            if index:
                places |= {f"edge{index}": edge, f"out{index}": unit * place}
            edge += self.results[index][1]
        if self.residual is not None:
            places["residual"] = self.residual
        for part in self.parts:
            here = places | {"start": part.start, "first": part.first, "cols": part.rows}
            if self.groups is not None:
                yield from self._grouped(products, part, (*defines, ("GROUPS", "1")), here | {"cols": width})
                continue
            for product in shaders(products) if self.far else products:
                if product.launches is not None:
                    yield from product.launches(product, self, part, here, defines)
                    continue
                extra, normed, beside = self._beside(product)
                given = (defines + product.defines + normed, here | extra, (part.buffer, *self.bias, *beside))
                times = -(-part.rows // product.columns)
                yield Launch(product.shader, *given, self.rows, product.rows, times, product.least, product.most)

    def _grouped(
        self, products: Sequence[Product], part: Rows, defines: Defines, places: dict[str, Any]
    ) -> Iterator[Launch]:
        """For the matrices of a stack in one buffer. How many rows each of them has is not known here: each has tiles
        of its own, at most one more than its share, and the shader is chosen by the mean."""
        assert self.groups is not None
        (_, width), count = self.results[0], self.groups.matrices
        matrices = part.rows // width
        here = places | {"starts": self.groups.starts, "matrices": matrices, "from_matrix": part.first // width}
        for product in shaders(products):
            more = 0 if product.shader == "matmul_row" else product.rows * matrices
            least = (product.least - 1) * count + 1 + more if product.least else 0
            most = min(MANY, product.most * count + more)
            extra, _, _ = self._beside(product)
            given = (defines + product.defines, here | extra, (part.buffer, *self.bias))
            items, times = self.rows + more, -(-width // product.columns)
            yield Launch(product.shader, *given, items, product.rows, times, least, most)

    def _beside(self, product: Product) -> tuple[dict[str, Any], Defines, tuple[Any, ...]]:
        """Parameters, definitions and buffers that only this shader has."""
        if product.shader == "matmul":
            return {"x": self.x, "part": PART}, (), ()
        if product.shader != "matmul_row" or self.norm is None:
            return {"x": self.x}, (), ()
        lanes = (("NORM", "256" if self.depth >= WIDE_NORM else "64"),)
        return {"x": self.norm.source, "eps": self.norm.eps}, lanes, (self.norm.gain,)


@kernel("matmul")
def matmul(call: Call) -> Iterator[Launch]:
    yield from multiply(call).launches(call.device.products)


def multiply(call: Call) -> Multiply:
    """The product of an instruction as it stands."""
    *leading, depth = call.shape(0)
    weight = call.bound(1)  # a DeviceWeight
    return Multiply(
        call.at(0),
        count(leading),
        depth,
        weight.stored,
        weight.stride,
        weight.parts,
        ((call.out(), call.shape(1)[-2]),),
        (call.vector(2),) if call.given(2) else (),
        call.attrs["activation"],
        groups=Groups(call.at(3), call.shape(1)[0]) if call.given(3) else None,
        scratch=call.scratch,
        compute=PRODUCTS[call.instr.op],
        rounded=bool(call.attrs.get("rounded")),
        far=weight.far,
    )
