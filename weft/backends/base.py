"""What a backend is: something that compiles programs and runs them. Everything else is its own affair."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.errors import BackendError

if TYPE_CHECKING:
    import numpy as np

    from weft.dtype import DType
    from weft.graph.program import Program
    from weft.ops.packed import Packed
    from weft.ops.state import AdapterArray, KvArray


class Executable(ABC):
    """A program bound to its weights and states."""

    @abstractmethod
    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """One step: arrays for every input of the program, by name; its outputs, by name. States change in place.

        Arrays may be views. Values of the int8 row types, which only tests have at a program's edge, are `Packed`.
        T, B and L are read off the inputs' shapes (`weft.graph.program.bind_sizes`); InputError where they do not fit.
        """


class Backend(ABC):
    """Compiles verified programs."""

    name: str

    @abstractmethod
    def compile(
        self, program: Program, weights: Mapping[str, np.ndarray | Packed], states: Mapping[str, Any]
    ) -> Executable:
        """Bind a program: a float32 array or a `Packed` for every weight, one of the backend's states for every state
        and every table of adapters.

        The program is planned; BackendError for an op the backend does not have.
        """

    @abstractmethod
    def supports(self, op: str, dtypes: Sequence[DType]) -> bool:
        """Whether instructions of this op run, given the element types of the operands that are present."""

    def state_from(self, array: KvArray | AdapterArray) -> Any:
        """The backend's own state or table with these contents. The reference keeps arrays; a device would upload."""
        return array

    def state_to_array(self, state: Any) -> KvArray:
        """The contents of a state, for tests and for saving a session."""
        return state

    def __repr__(self) -> str:
        return self.name


def check_bindings(program: Program, weights: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """BackendError unless every weight and state of the program is given, weights with their shape and type."""
    from weft.ops.spec import spec_of

    for value in program.weights:
        if value.name not in weights:
            raise BackendError(
                f"[{program.name}] weight {value.name} is missing; the loader gives all of program.weights"
            )
        if spec_of(weights[value.name]) != value.spec:
            given = spec_of(weights[value.name])
            raise BackendError(f"[{program.name}] weight {value.name} is {given}; the program wants {value.spec}")
    for value in (*program.states, *program.tables):
        if value.name not in states:
            raise BackendError(
                f"[{program.name}] {value.kind} {value.name} is missing; give all of program.{value.kind}s"
            )
