"""Models in block types of 1 to 4 bits: logits are those of the values; batches, chunks and threads change no bit."""

from pathlib import Path

import numpy as np
import pytest
import tiny
from tiny_gguf import gguf_from_config, gguf_tensors

from weft.dtype import DTYPES
from weft.ops.packed import Packed
from weft.ops.samples import SCALES, weight
from weft.runtime import Decoder, open_checkpoint
from weft.weights import write_gguf
from weft.weights.files import TensorView

CONFIG = {
    **tiny.QWEN2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 31,
}
TYPES = (
    "iq1_s", "iq1_m", "tq1_0", "tq2_0", "iq2_xxs", "iq2_xs", "iq2_s", "q2_k", "iq3_xxs", "iq3_s", "q3_k", "iq4_xs",
)  # fmt: skip


def packed(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> TensorView:
    """Random codes whose values are about as large as trained weights."""
    made = weight(rng, dtype, *shape)
    assert isinstance(made, Packed)
    blocks = made.data.reshape(-1, DTYPES[dtype].size_bytes).copy()
    for at in SCALES[dtype]:
        halves = blocks[:, at : at + 2].copy().view("<f2") * (0.05 / made.dense().std())
        blocks[:, at : at + 2] = halves.astype("<f2").view(np.uint8)
    return TensorView(DTYPES[dtype], shape, blocks.reshape(-1))


@pytest.mark.parametrize("dtype", TYPES)
def test_logits_are_those_of_the_values_and_chunks_and_threads_change_no_bit(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(3)
    values = tiny.weights(CONFIG)
    views = {n: packed(rng, dtype, v.shape) if v.ndim > 1 else TensorView.of(v) for n, v in values.items()}
    write_gguf(tmp_path / "m.gguf", gguf_tensors(CONFIG, views), gguf_from_config(CONFIG))
    dense = {name: view.numpy().astype(np.float32) for name, view in views.items()}
    ids = tiny.token_ids(CONFIG, 40)
    want = Decoder(open_checkpoint(tiny.write_folder(tmp_path / "dense", CONFIG, dense))).logits(ids)

    for compute, most in (("f32", 1e-5), ("int8", 5e-2)):
        decoder = Decoder(open_checkpoint(tmp_path / "m.gguf"), compute=compute, kv_dtype="f32", threads=2)
        found = decoder.logits(ids, chunk=40)
        assert np.linalg.norm(found - want) <= most * np.linalg.norm(want)
        for chunk in (1, 3, 17):
            assert np.array_equal(found, decoder.logits(ids, chunk=chunk))
        alone = Decoder(open_checkpoint(tmp_path / "m.gguf"), compute=compute, kv_dtype="f32", threads=1)
        assert np.array_equal(found, alone.logits(ids, chunk=5))
