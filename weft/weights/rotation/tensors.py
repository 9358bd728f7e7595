"""The tensors of a folder, rotated one by one, and held to what they were."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.dtype import DTYPES
from weft.errors import UnsupportedError, WeightError
from weft.weights.files import MadeView
from weft.weights.rotation.mark import GAIN, marked
from weft.weights.rotation.turns import EMBEDDING, HEAD, Role, Rotation, is_norm

if TYPE_CHECKING:
    import numpy as np

PROBES, CLOSE = 4, 1e-9


class RotatedTensors:
    """The tensors of a folder (`tensors`) of a plain decoder, turned, each when it is read. A tensor that such a model
    does not have is an UnsupportedError. With `tied` the head is made of the embedding."""

    def __init__(self, tensors: Mapping[str, Any], rotation: Rotation, *, tied: bool) -> None:
        self._stored, self.rotation = tensors, rotation
        self._sources = {name: name for name in tensors}
        self.untied = tied and rotation.stream
        if self.untied:
            self._sources[HEAD] = EMBEDDING
        for name in self._sources:
            if rotation.role(name) is None:
                what = f"{name} is no tensor of a plain decoder, so weft cannot rotate it"
                raise UnsupportedError("quantize", what, field="rotate", advice="leave --rotate out")

    @property
    def tensors(self) -> dict[str, Any]:
        """All tensors, and the gains that the norms had."""
        found: dict[str, Any] = {}
        for name, source in self._sources.items():
            view = self._stored[source]
            if self.rotation.role(name) == Role():
                found[name] = view
                continue
            if is_norm(name):
                found[GAIN + name] = self._lazy(view.shape, partial(self._wide, name))
            found[name] = self._lazy(view.shape, partial(self.made, name))
        return found

    @staticmethod
    def _lazy(shape: tuple[int, ...], make: Callable[[], np.ndarray]) -> MadeView:
        import numpy as np

        return MadeView(DTYPES["f32"], shape, lambda: np.ascontiguousarray(make(), np.float32))

    def made(self, name: str) -> np.ndarray:
        """A tensor, turned; float64."""
        import numpy as np

        role = self.rotation.role(name)
        assert role is not None
        if is_norm(name):
            return np.ones(self._stored[name].shape)
        return self.rotation.matrix(role, self._wide(self._sources[name]), self._gain(role))

    def _gain(self, role: Role) -> np.ndarray | None:
        return None if role.norm is None else self._wide(role.norm)

    def _wide(self, name: str) -> np.ndarray:
        import numpy as np

        if name not in self._stored:
            raise WeightError("weights", f"{name} is missing")
        return self._stored[name].numpy().astype(np.float64)

    def check(self, tell: Callable[[int, int], None] = lambda done, all: None) -> float:
        """The largest relative difference of any tensor, between y W x of random x and y and the same with all three
        turned, in float64; WeightError where it is above CLOSE."""
        worst = 0.0
        for number, name in enumerate(self._sources):
            role = self.rotation.role(name)
            if role is not None and role != Role() and not is_norm(name):
                apart = self._difference(name, role)
                worst = max(worst, apart)
                if not apart <= CLOSE:
                    what = f"{name}: rotated and original results are {apart:.1e} apart, at most {CLOSE:g} is allowed"
                    raise WeightError("quantize", what, advice="nothing was written; the tensor may not be finite")
            tell(number + 1, len(self._sources))
        return worst

    def _difference(self, name: str, role: Role) -> float:
        import numpy as np

        rng = np.random.default_rng(0)
        made, given = self.made(name), self._wide(self._sources[name])
        gain = self._gain(role)
        given = given if gain is None else given * gain
        got, want = made, given
        if made.ndim == 2:
            x = rng.standard_normal((PROBES, made.shape[1]))
            want = given @ x.T
            got = made @ (x if role.reads is None else self.rotation.turn(role.reads, x)).T
        y = rng.standard_normal((PROBES, made.shape[0]))
        want, got = y @ want, (y if role.writes is None else self.rotation.turn(role.writes, y)) @ got
        return float(np.linalg.norm(got - want) / max(float(np.linalg.norm(want)), 1e-300))

    def config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """config.json of the turned model."""
        return marked(config, self.rotation)
