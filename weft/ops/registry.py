"""The catalogue's machinery: what an op is, its parts, and how it is called.

    @op
    def rms_norm(x: Array, weight: Weight, *, eps: float) -> Array:   the reference: the meaning, in float64
    @rms_norm.shape        specs in, specs out; raises ShapeError
    @rms_norm.cost         specs in, Cost out
    @rms_norm.samples      operands worth testing
    @rms_norm.vjp          the gradient's meaning, or rms_norm.no_gradient("why not")
    rms_norm.tolerance(because="…")
    @rms_norm.back         the gradient said with ops, where programs with this op are trained (weft/ops/backward.py)

The signature is the interface: positional parameters are operands (a default of None makes one optional), annotated
with their role; keyword-only parameters are attributes, typed by their annotation. References get their floating
operands widened to float64 and return float64; `Op.__call__` rounds once at the end, so no reference can forget to.
"""

import importlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from weft.errors import MISSING, InputError, NotFoundError, ShapeError
from weft.frozen import frozen
from weft.ops.packed import Packed
from weft.ops.spec import Dim, Shape, Spec, spec_of
from weft.ops.state import KV_ELEMENTS, AdapterArray, KvArray, SlotArray
from weft.ops.tolerance import DEFAULTS

LEARNING = (
    "backward",
    "attention_backward",
    "experts_backward",
    "recurrent_backward",
    "training",
    "narrow",
    "dropout",
)  # imported where one of them is asked for
FAMILIES = (
    "elementwise", "norm", "matmul", "quant", "gather", "rope", "attention", "paged", "recurrent", "reduce", "experts",
    "hadamard",
)  # fmt: skip

# Values of word attributes. Kernels get a word as its index in the list; csrc/core/words.h has the same lists.
Activation = Literal["gelu", "gelu_tanh", "silu", "relu", "tanh", "sigmoid", "softplus", "relu2", "quick_gelu"]
ActivationOrNone = Literal["none", Activation]
PoolMode = Literal["mean", "first", "last", "max", "mean_sqrt_len", "weightedmean"]
Narrow = Literal["f16", "bf16"]
ACTIVATIONS: tuple[str, ...] = get_args(ActivationOrNone)
POOL_MODES: tuple[str, ...] = get_args(PoolMode)
NARROWS: tuple[str, ...] = get_args(Narrow)

# Roles of operands. In a program an operand with the role weight, kv, recurrent, conv or table is always a value of
# that kind.
Array = Annotated[np.ndarray, "array"]
Integers = Annotated[np.ndarray, "integers"]
Rows = Annotated[Packed, "rows"]  # activations in int8 blocks or bfloat16
Codes = Annotated[np.ndarray, "rows"]  # activations in int8
Values = Annotated[np.ndarray | Packed, "values"]  # activations in floats or bfloat16
Weight = Annotated[np.ndarray | Packed, "weight"]
State = Annotated[KvArray, "kv"]
Recurrent = Annotated[SlotArray, "recurrent"]
Conv = Annotated[SlotArray, "conv"]
Table = Annotated[AdapterArray, "table"]

Sample = tuple[tuple[Any, ...], dict[str, Any]]


class Symbolic:
    """An operand without a value: calling an op on one records the call (weft/graph/tensor.py) instead of computing."""

    spec: Spec

    def record(self, op: "Op", operands: Sequence["Symbolic | None"], attrs: dict[str, Any]) -> Any:
        raise NotImplementedError


@frozen
class Cost:
    """Arithmetic operations, and bytes that must move between memory and the processor at least once."""

    flops: int
    bytes: int


@frozen
class Operand:
    """A positional parameter of an op; roles are array, integers, rows, values, weight, table and kinds of state."""

    name: str
    role: str
    optional: bool


@frozen
class Attribute:
    """A keyword parameter: `kind` is float, int, bool, word or shape; `words` are the choices of a word."""

    name: str
    kind: str
    words: tuple[str, ...] = ()
    default: Any = inspect.Parameter.empty

    def check(self, where: str, value: Any) -> Any:
        """The value in its canonical Python type; raises InputError for one that does not fit."""
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))
        whole = whole and abs(value) < 2**53  # kernels see every number as a double
        if self.kind == "bool" and isinstance(value, (bool, np.bool_)):
            return bool(value)
        if self.kind == "int" and whole:
            return int(value)
        if self.kind == "float" and (whole or isinstance(value, (float, np.floating))) and math.isfinite(value):
            return float(value)
        if self.kind == "word" and value in self.words:
            return str(value)
        listed: Sequence[Any] = value if isinstance(value, (tuple, list)) else (None,)
        if self.kind == "shape" and all(isinstance(size, (int, np.integer, Dim)) for size in listed):
            return tuple(size if isinstance(size, Dim) else int(size) for size in listed)
        kinds = {"float": "a finite number", "int": "an integer", "bool": "a bool", "shape": "a tuple of sizes"}
        wanted = f"one of {', '.join(self.words)}" if self.words else kinds[self.kind]
        raise InputError(where, f"must be {wanted}", field=self.name, given=value)


def require(
    condition: bool, where: str, what: str, *, field: str | None = None, given: Any = MISSING, advice: str | None = None
) -> None:
    """Raise a ShapeError of the op `where` unless the condition holds; `field` is the operand or attribute at fault."""
    if not condition:
        raise ShapeError(where, what, field=field, given=given, advice=advice)


class Op:
    """One op of the catalogue. `effect` ops change a state; `in_place` names operands a result may overwrite:
    result i may lie in the memory of one of in_place[i] when both have the same shape and type.
    """

    def __init__(self, reference: Callable[..., Any], in_place: tuple[tuple[str, ...], ...], effect: bool) -> None:
        self.name = reference.__name__
        self.family = reference.__module__.rpartition(".")[2]
        self.reference = reference
        self.effect = effect
        self.__doc__ = reference.__doc__
        self.operands, self.attributes = _read_signature(reference)
        index = {operand.name: i for i, operand in enumerate(self.operands)}
        self.in_place = tuple(tuple(index[name] for name in names) for names in in_place)
        self.gradient: Callable[..., tuple[Any, ...]] | None = None
        self.gradient_refused = ""
        self.backward: Callable[..., tuple[Any, ...]] | None = None
        self.decomposition: Callable[..., Any] | None = None
        self.tolerances: dict[str, float] = {}
        self.because = ""
        self._shape: Callable[..., Any] | None = None
        self._cost: Callable[..., Cost] | None = None
        self._samples: Callable[..., Iterator[Sample]] | None = None

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    # The parts, each a decorator or a declaration beside the reference.

    def shape(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        self._shape = rule
        return rule

    def cost(self, rule: Callable[..., Cost]) -> Callable[..., Cost]:
        self._cost = rule
        return rule

    def samples(self, make: Callable[..., Iterator[Sample]]) -> Callable[..., Iterator[Sample]]:
        self._samples = make
        return make

    def vjp(self, gradient: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
        self.gradient = gradient
        return gradient

    def back(self, expression: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
        """The gradients of the operands in terms of ops, from that of the result and the operands, as `vjp` has them.

        None stands for an operand without a gradient: integers, frozen weights.
        """
        self.backward = expression
        return expression

    def decompose(self, expression: Callable[..., Any]) -> Callable[..., Any]:
        """The op in terms of other ops, for a backend that lacks its kernel."""
        self.decomposition = expression
        return expression

    def no_gradient(self, reason: str) -> None:
        self.gradient_refused = reason

    def tolerance(self, *, because: str, **per_dtype: float) -> None:
        """Override the default tolerance of some element types; the reason is not optional."""
        self.tolerances, self.because = {**DEFAULTS, **per_dtype}, because

    # Use.

    def bind(self, operands: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Operands with absent optional ones as None, and every attribute checked, defaults filled in."""
        given = [*operands, *[None] * (len(self.operands) - len(operands))]
        if len(given) > len(self.operands):
            raise InputError(self.name, f"takes {len(self.operands)} operands", given=len(given))
        for operand, value in zip(self.operands, given):
            if value is None and not operand.optional:
                raise InputError(self.name, "is missing", field=operand.name, advice="this operand is not optional")
        unknown = set(attrs) - set(self.attributes)
        if unknown:
            known = f"its attributes are {', '.join(self.attributes)}" if self.attributes else "it has none"
            raise InputError(self.name, f"no attribute is called {', '.join(sorted(unknown))}; {known}")
        checked = {}
        for name, attribute in self.attributes.items():
            value = attrs.get(name, attribute.default)
            if value is inspect.Parameter.empty:
                raise InputError(self.name, "is missing", field=name, advice="this attribute has no default")
            checked[name] = attribute.check(self.name, value)
        return tuple(given), checked

    def infer(self, specs: Sequence[Spec | None], attrs: Mapping[str, Any]) -> tuple[Spec, ...]:
        """Specs of the results, from what `bind` returned; raises ShapeError when the operands do not fit."""
        assert self._shape, f"{self.name} has no shape rule"
        for operand, spec in zip(self.operands, specs):
            if spec is not None:
                _check_role(self.name, operand, spec)
        results = self._shape(*specs, **attrs)
        return results if isinstance(results, tuple) else (results,)

    def cost_of(self, *operands: Any, **attrs: Any) -> Cost:
        """The cost for operands (or specs) of known sizes."""
        assert self._cost, f"{self.name} has no cost"
        given, checked = self.bind(operands, attrs)
        return self._cost(*(None if value is None else spec_of(value) for value in given), **checked)

    def samples_from(self, rng: np.random.Generator) -> Iterator[Sample]:
        assert self._samples, f"{self.name} has no samples"
        return self._samples(rng)

    def wide(self, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        """The reference's results before the last rounding: float64, integers and packed rows as they are."""
        results = self.reference(*map(_widened, operands), **attrs)
        if results is None:
            return ()
        return results if isinstance(results, tuple) else (results,)

    def tolerance_for(self, operands: Sequence[Any]) -> float:
        """The largest relative error allowed on these operands: the tolerance of their widest floating type.

        Weights of a narrower type are exact numbers to a kernel that computes in f32, so they do not loosen it.
        """
        specs = [spec_of(value) for value in operands if value is not None]
        kinds = {spec.dtype.name for spec in specs} & set(self.tolerances)
        return self.tolerances[next((k for k in ("f64", "f32", "a8_32", "a8_256", "f16", "bf16") if k in kinds), "f32")]

    def __call__(self, *operands: Any, **attrs: Any) -> Any:
        """Record on symbolic tensors, compute on arrays. Several results are a tuple, no result is None."""
        given, checked = self.bind(operands, attrs)
        symbols = [value for value in given if isinstance(value, Symbolic)]
        if symbols:
            if any(value is not None and not isinstance(value, Symbolic) for value in given):
                advice = "declare the arrays as weights of the trace"
                raise InputError(self.name, "got arrays and symbolic tensors together", advice=advice)
            return symbols[0].record(self, given, checked)
        specs = self.infer([None if value is None else spec_of(value) for value in given], checked)
        rounded = tuple(_rounded(value, spec) for value, spec in zip(self.wide(*given, **checked), specs))
        return None if not rounded else rounded[0] if len(rounded) == 1 else rounded


def op(
    reference: Callable[..., Any] | None = None,
    *,
    in_place: tuple[tuple[str, ...], ...] = (),
    effect: bool = False,
) -> Any:
    """Turn a reference into an op. `in_place`: for each result the operands whose memory it may reuse."""
    if reference is None:
        return lambda function: Op(function, in_place, effect)
    return Op(reference, in_place, effect)


@lru_cache(maxsize=2)
def _ops_of(families: tuple[str, ...]) -> dict[str, Op]:
    found: dict[str, Op] = {}
    for family in families:
        module = importlib.import_module(f"weft.ops.{family}")
        found.update({o.name: o for o in vars(module).values() if isinstance(o, Op) and o.family == family})
    return found


@lru_cache(maxsize=1)
def catalogue() -> dict[str, Op]:
    """Every op by name, family after family, with its gradient."""
    return {**_ops_of(FAMILIES), **_ops_of(LEARNING)}


def known(name: str) -> Op | None:
    """The op of this name, None if there is none."""
    return _ops_of(FAMILIES).get(name) or _ops_of(LEARNING).get(name)


def find(name: str) -> Op:
    """The op of this name."""
    found = known(name)
    if found is None:
        raise NotFoundError("ops", f"no op is called {name!r}", advice=f"the ops are {', '.join(catalogue())}")
    return found


def missing_parts(op: Op) -> list[str]:
    """Which of the parts that every op has this one lacks."""
    parts = {
        "reference": op.reference.__doc__,
        "shape": op._shape,
        "cost": op._cost,
        "samples": op._samples,
        "gradient": op.gradient or op.gradient_refused,
        "tolerance": op.because,
    }
    return [name for name, part in parts.items() if not part]


def _read_signature(reference: Callable[..., Any]) -> tuple[tuple[Operand, ...], dict[str, Attribute]]:
    hints = get_type_hints(reference, include_extras=True)
    operands: list[Operand] = []
    attributes: dict[str, Attribute] = {}
    for parameter in inspect.signature(reference).parameters.values():
        hint = hints[parameter.name]
        if parameter.kind is not parameter.KEYWORD_ONLY:
            optional = parameter.default is None
            role = get_args(get_args(hint)[0] if get_origin(hint) is not Annotated else hint)[-1]
            operands.append(Operand(parameter.name, role, optional))
        elif get_origin(hint) is Literal:
            attributes[parameter.name] = Attribute(parameter.name, "word", get_args(hint), parameter.default)
        else:
            kind = "shape" if hint == Shape else hint.__name__
            attributes[parameter.name] = Attribute(parameter.name, kind, (), parameter.default)
    return tuple(operands), attributes


def _check_role(where: str, operand: Operand, spec: Spec) -> None:
    name = spec.dtype.name
    fits = {
        "array": spec.floating,
        "integers": name == "i32",
        "rows": name in ("a8_32", "a8_256", "bf16", "i8"),
        "values": spec.floating or name == "bf16",
        "weight": spec.floating or name == "bf16" or (spec.dtype.quantised and not name.startswith("a8")),
        "kv": name in ("f64", *KV_ELEMENTS) and spec.rank == 2,
        "recurrent": spec.floating,
        "conv": spec.floating and spec.rank == 2,
        "table": spec.floating and spec.rank in (2, 3),
    }[operand.role]
    wanted = {
        "array": "floats",
        "integers": "i32",
        "rows": "int8 or bf16 rows",
        "values": "floats or bf16",
        "weight": "a weight",
        "kv": "a key/value state [heads, dim]",
        "recurrent": "a recurrent state",
        "conv": "a convolution's state [channels, width]",
        "table": "a table",
    }
    require(fits, where, f"must be {wanted[operand.role]}", field=operand.name, given=spec)


def _widened(operand: Any) -> Any:
    if isinstance(operand, np.ndarray) and operand.dtype.kind == "f":
        return operand.astype(np.float64, copy=False)
    return operand


def _rounded(value: Any, spec: Spec) -> Any:
    return value if isinstance(value, Packed) else np.asarray(value).astype(spec.dtype.numpy)
