"""Ray Data's workers give every row its vector."""

from pathlib import Path

import numpy as np
import pytest

import weft
from weft.ray import EmbedBatches


def test_a_batch_keeps_its_columns(tiny_folder: Path, tiny_embedder: weft.Embedder) -> None:
    texts = np.array(["the cat", "one two " * 90], object)
    made = EmbedBatches(str(tiny_folder), output="v", threads=1)({"text": texts, "n": np.arange(2)})
    assert list(made) == ["text", "n", "v"]
    assert np.array_equal(made["v"], tiny_embedder.encode_document(list(texts), truncate="chunk"))
    with pytest.raises(weft.WeftError, match=r"column must be a column of the batch \(text\): got 'body'"):
        EmbedBatches(str(tiny_folder), column="body")({"text": texts})
    with pytest.raises(weft.WeftError, match="role"):
        EmbedBatches(str(tiny_folder), role="answer")
    with pytest.raises(weft.errors.InputError, match=r"'normalize'; the options are .* weft.Embedder"):
        EmbedBatches("no-such-model", normalize=True)  # before the model is looked for


@pytest.mark.parametrize("value", [None, np.nan, 5, b"a"])
def test_what_is_no_text_is_refused_by_column_and_row(tiny_folder: Path, value: object) -> None:
    embed = EmbedBatches(str(tiny_folder), column="body", threads=1)
    with pytest.raises(weft.errors.InputError, match=f"row 1 of the batch .* 'body': got {value!r}"):
        embed({"body": np.array(["a", value], object)})


def test_columns_are_not_overwritten_and_tables_are_told(tiny_folder: Path) -> None:
    embed = EmbedBatches(str(tiny_folder), threads=1)
    with pytest.raises(weft.errors.InputError, match=r"output must be a new column.*got 'embedding'"):
        embed({"text": np.array(["a"]), "embedding": np.zeros(1)})
    assert embed({"text": np.array(["a", "the cat"])})["embedding"].shape == (2, 24)
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    with pytest.raises(
        weft.errors.InputError, match=r"batch must be .* not Table; give map_batches batch_format='numpy'"
    ):
        embed(pyarrow.table({"text": ["a"]}))


def test_two_workers_of_a_local_cluster(tiny_folder: Path, tiny_embedder: weft.Embedder) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed; pip install 'ray[data]'")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        EmbedBatches(str(tiny_folder))({"text": np.array(["a"])})  # in the driver, as one tries it first
        texts = [f"the cat {i}" for i in range(400)]
        data = ray.data.from_items([{"n": i, "text": text} for i, text in enumerate(texts)])
        made = data.map_batches(
            EmbedBatches, fn_constructor_kwargs={"model": str(tiny_folder)}, concurrency=2, num_cpus=1, batch_size=64
        )
        rows = sorted(made.take_all(), key=lambda row: row["n"])
    finally:
        ray.shutdown()
    assert np.array_equal(np.stack([row["embedding"] for row in rows]), tiny_embedder.encode_document(texts))
