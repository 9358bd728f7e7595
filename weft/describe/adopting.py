"""Adopting a model: a drafted description is tried on the names and shapes of its tensors; no weight is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.describe.draft import draft_of
from weft.describe.parts import TRAINING, UNUSED
from weft.describe.tracing import traced
from weft.errors import InputError, UnsupportedError, WeftError
from weft.frozen import frozen
from weft.graph import Trace
from weft.models import find_module
from weft.nn.description import LAYER, read_description
from weft.runtime.checkpoint import DESCRIBED, DESCRIPTION, described_config, open_checkpoint

if TYPE_CHECKING:
    from weft.runtime import Checkpoint

TIED = ("lm_head.weight", "embed_out.weight")  # may be in a file beside the embedding that is the same


@frozen
class Adoption:
    """What came of trying to describe a model; sentences are for people.

    description   the draft, None where there are obstacles
    obstacles     what of the model a description has no words for
    assumed       facts that neither config.json nor the tensors show
    unknown       keys of config.json that the draft does not take into account, with their values
    missing       tensors that the description needs and the file lacks, or has in another shape
    unmatched     tensors of the file that the description does not use
    """

    model_type: str
    description: Mapping[str, Any] | None
    obstacles: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether weft can run the model: every tensor is used, and none is missing."""
        return self.description is not None and not (self.missing or self.unmatched)


def adopt(path: Path, tell: Callable[[int, int], None] = lambda done, total: None) -> Adoption:
    """Draft a description of the model in a folder and try it; `tell` gets how many tensors were compared."""
    checkpoint = open_checkpoint(path)
    kind = checkpoint.model_type
    if DESCRIBED in checkpoint.config:
        what = f"{path.name} has a {DESCRIPTION} already"
        raise InputError(
            "adopt", what, advice=f"remove it to draft another; `weft show --config {path.name}` prints it"
        )
    if find_module(kind) is not None:
        what = f"weft has a file for models of type {kind}; they need no description"
        raise InputError("adopt", what, advice="`weft show --config` prints theirs")
    if checkpoint.format != "safetensors":
        raise UnsupportedError("adopt", "a GGUF file says itself what it holds; give a folder with safetensors files")
    shapes = {name: tensor.view.shape for name, tensor in checkpoint.tensors.items()}
    draft = draft_of(checkpoint.config, shapes)
    if draft.obstacles:
        return Adoption(kind, None, draft.obstacles)
    config = described_config(checkpoint.config, draft.description)
    missing, used = _compared(replace(checkpoint, config=config), tell)
    rest = [name for name in shapes if name not in used and not _may_stay_unused(name, draft.description)]
    heads = [name for name in shapes if draft.description["kind"] == "encoder" and TRAINING.fullmatch(name)]
    left_out = (f"heads of training and classifiers are left out: {', '.join(heads)}",) if heads else ()
    words = draft.description if missing else read_description(draft.description).as_json()
    return Adoption(kind, words, (), (*draft.assumed, *left_out), draft.unknown, tuple(missing), tuple(rest))


def _may_stay_unused(name: str, words: Mapping[str, Any]) -> bool:
    """Whether no result depends on this tensor: a mask, a head that is tied, or the head of an encoder's training."""
    if words["kind"] == "encoder":
        return bool(UNUSED.fullmatch(name) or TRAINING.fullmatch(name))
    return bool(UNUSED.fullmatch(name)) or (name in TIED and words["output"]["tied"])


def _compared(checkpoint: Checkpoint, tell: Callable[[int, int], None]) -> tuple[list[str], set[str]]:
    """What is missing or has another shape than the description wants, and the names of the tensors that it uses."""
    try:
        program = traced(Trace("adopted"), checkpoint)
    except WeftError as error:  # a part has no name, or a size is wrong
        return [str(error)], _named(checkpoint.config[DESCRIBED])
    wanted = [value for value in program.program().weights if value.name not in program.constants]
    missing, used = [], set()
    for done, value in enumerate(wanted, 1):
        used.add(value.name.partition(":")[0])
        try:
            checkpoint.tensor(value.name, value.shape)  # type: ignore[arg-type]
        except WeftError as error:
            missing.append(error.what)
        tell(done, len(wanted))
    return missing, used


def _named(words: Mapping[str, Any]) -> set[str]:
    """The tensors whose parts the draft has a name for."""
    layers = range(words["layers"])
    stems = {name.replace(LAYER, str(layer)) for name in words["weights"].values() for layer in layers}
    return {f"{stem}.{ending}" for stem in stems for ending in ("weight", "bias")}
