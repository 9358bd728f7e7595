"""A backend is behind one door: whole models run on the numpy reference, and on a backend that lacks every fused op."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tiny
from test_models import DECODERS, ENCODERS, LIMIT, context_of, error_of

import weft
from weft.backends import open_backend
from weft.backends.reference import ReferenceBackend
from weft.dtype import DType
from weft.errors import NotFoundError
from weft.ops.registry import catalogue
from weft.runtime import Decoder, Encoder, Head, open_checkpoint


class Unfused(ReferenceBackend):
    """Has kernels only for ops that cannot be said with others."""

    name = "unfused"

    def supports(self, op: str, dtypes: Sequence[DType]) -> bool:
        return catalogue()[op].decomposition is None

    @property
    def key(self) -> str:
        return self.name


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    return {name: tiny.write_folder(root / name, cfg) for name, cfg in tiny.CONFIGS.items()}


@pytest.mark.parametrize("name", [*DECODERS, *ENCODERS])
def test_every_golden_passes_on_the_reference(folders: dict[str, Path], name: str) -> None:
    checkpoint = open_checkpoint(folders[name])
    for length in tiny.lengths(tiny.CONFIGS[name]):
        ids = tiny.token_ids(tiny.CONFIGS[name], length)
        if name in DECODERS:
            decoder = Decoder(checkpoint, context=context_of(length), backend="reference")
            found = decoder.logits(ids)
            assert decoder.info["backend"] == "reference"
        else:
            found = Encoder(checkpoint, Head("mean"), backend="reference").hidden_states(ids)
        assert found.dtype == np.float32
        assert error_of(found, name) <= LIMIT


@pytest.mark.parametrize("name", ["llama-grouped", "gemma3_text", "bert", "modernbert"])
def test_a_backend_without_fused_ops_runs_the_model(folders: dict[str, Path], name: str) -> None:
    checkpoint, ids = open_checkpoint(folders[name]), tiny.token_ids(tiny.CONFIGS[name], 40)
    if name in DECODERS:
        decoder = Decoder(checkpoint, context=context_of(40), backend=Unfused())
        program, found = decoder.program, decoder.logits(ids)
    else:
        encoder = Encoder(checkpoint, Head("mean"), backend=Unfused())
        program, found = encoder.program(), encoder.hidden_states(ids)
    fused = {op.name for op in catalogue().values() if op.decomposition is not None} - {"matmul"}
    assert not fused & {instr.op for instr in program.body}
    products = [instr for instr in program.body if instr.op == "matmul"]
    assert products and all(i.inputs[2] is None and i.attrs["activation"] == "none" for i in products)
    assert error_of(found, name) <= LIMIT


def test_generating_on_the_reference_gives_the_tokens_of_the_cpu(folders: dict[str, Path]) -> None:
    models = [weft.load(str(folders["llama-grouped"]), backend=name) for name in ("cpu", "reference")]
    texts = [model.generate([1, 5, 9], max_tokens=12, ignore_eos=True).tokens for model in models]
    assert texts[0] == texts[1]
    assert [model.info["backend"] for model in models] == ["cpu", "reference"]


def test_the_flag_chooses_the_backend(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_BACKEND", "reference")
    assert Decoder(open_checkpoint(folders["llama-grouped"])).backend.name == "reference"
    monkeypatch.setenv("WEFT_BACKEND", "")
    assert open_backend().name.startswith("cpu-")


def test_an_unknown_backend_is_named_with_those_that_exist() -> None:
    with pytest.raises(NotFoundError, match=r"backend .*'tpu'.*cpu, reference"):
        open_backend("tpu")
