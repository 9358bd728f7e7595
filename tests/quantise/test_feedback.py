"""Error feedback beside a plain one in numpy; what a matrix makes of its inputs is nearer to what it was."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from weft.cli.app import app
from weft.errors import InputError
from weft.quantise import Calibration, Quantising, encode, feedback_factor
from weft.quantise.encoding import ENCODED
from weft.weights import open_gguf

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("models", "golden/quantise")]
import make_folders as maker  # noqa: E402


def inputs(columns: int, count: int = 2000) -> np.ndarray:
    """Correlated columns of different sizes, as models have them."""
    rng = np.random.default_rng(11)
    mixed = rng.standard_normal((count, columns // 4)) @ rng.standard_normal((columns // 4, columns))
    return (mixed + 0.3 * rng.standard_normal((count, columns))) * np.exp(0.5 * rng.standard_normal(columns))


def test_the_factor_is_a_root_of_the_inverse():
    x = inputs(96)
    moments = x.T @ x / len(x)
    factor = feedback_factor(moments, damping=0.02).astype(np.float64)
    wanted = np.linalg.inv(moments + 0.02 * np.diag(moments).mean() * np.eye(96))
    assert np.array_equal(factor, np.triu(factor))
    np.testing.assert_allclose(factor.T @ factor, wanted, atol=1e-5 * np.abs(wanted).max())
    assert np.array_equal(feedback_factor(np.zeros((4, 4))), np.eye(4))


@pytest.mark.parametrize("name", ["q4_0", "iq4_nl"])
def test_columns_are_rounded_as_numpy_does_it(name):
    """GPTQ in float64, given the scales that came out."""
    rng = np.random.default_rng(2)
    x = inputs(96)
    factor = feedback_factor(x.T @ x / len(x))
    rows = rng.standard_normal((21, 96)).astype(np.float32)
    made = encode(rows, name, factor=factor)
    blocks = made.bytes().reshape(21, 3, -1)
    scales = blocks[..., :2].copy().view(np.float16)[..., 0].astype(np.float64)
    levels = np.arange(-8.0, 8.0)
    if name == "iq4_nl":
        levels = np.float64([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
    work, wanted, u = rows.astype(np.float64), np.zeros((21, 96)), factor.astype(np.float64)
    for column in range(96):
        unit = scales[:, column // 32, None]
        nearest = np.abs(work[:, column, None] - unit * levels).argmin(1)
        wanted[:, column] = unit[:, 0] * levels[nearest]
        missed = (work[:, column] - wanted[:, column]) / u[column, column]
        work[:, column:] -= missed[:, None] * u[column, column:]
    assert (np.abs(made.numpy() - wanted).max(1) < 1e-3).mean() > 0.8, "but for rows in which a level was near a tie"


@pytest.mark.parametrize("name", ENCODED)
def test_outputs_are_nearer_and_bytes_do_not_depend_on_threads(name):
    x = inputs(256)
    moments = x.T @ x / len(x)
    rows = np.random.default_rng(4).standard_normal((40, 256)).astype(np.float32)
    weights, factor = np.diag(moments).copy(), feedback_factor(moments)
    plain = encode(rows, name, importance=weights).numpy()
    fed = encode(rows, name, importance=weights, factor=factor)
    lost = [(((rows - made) @ x.T) ** 2).sum() for made in (plain, fed.numpy())]
    assert lost[1] < 0.85 * lost[0]
    for threads in (2, 3):
        again = encode(rows, name, importance=weights, factor=factor, threads=threads)
        assert np.array_equal(again.bytes(), fed.bytes())


def test_without_correlation_nothing_changes():
    rows = np.random.default_rng(4).standard_normal((5, 64)).astype(np.float32)
    fed = encode(rows, "q4_0", factor=np.eye(64, dtype=np.float32))
    assert np.array_equal(fed.bytes(), encode(rows, "q4_0").bytes())
    for bad in (np.ones((64, 63)), np.full((64, 64), np.nan)):
        with pytest.raises(InputError, match="rows of 64"):
            encode(rows, "q4_0", factor=bad)
    with pytest.raises(InputError, match="square"):
        feedback_factor(np.ones(3))


def test_a_file_with_feedback_computes_nearer(tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}
    maker.write_folder(tmp_path / "model", "qwen3", **sizes)
    work = Calibration(tmp_path / "model", "\n".join(maker.TEXTS * 4))
    means = {name: one.mean for name, one in work.importance().items()}
    paths = [tmp_path / name for name in ("f32.gguf", "plain.gguf", "fed.gguf", "again.gguf")]
    list(Quantising(tmp_path / "model", paths[0], type="f32"))
    list(Quantising(tmp_path / "model", paths[1], type="q4_0", importance=means))
    list(Quantising(tmp_path / "model", paths[2], type="q4_0", importance=means, feedback=work))
    for number, _ in enumerate(Quantising(tmp_path / "model", paths[3], type="q4_0", importance=means, feedback=work)):
        if number == 9:
            break
    list(Quantising(tmp_path / "model", paths[3], type="q4_0", importance=means, feedback=work))
    assert paths[2].read_bytes() == paths[3].read_bytes() != paths[1].read_bytes()
    (tmp_path / "text.txt").write_text("\n".join(maker.TEXTS * 4))
    given = ["--type", "q4_0", "--calibrate", str(tmp_path / "text.txt"), "--feedback", "--force", "--json"]
    command = ["quantize", str(tmp_path / "model"), "-o", str(paths[3])]
    result = CliRunner().invoke(app, [*command, *given])
    assert result.exit_code == 0, result.output
    assert paths[2].read_bytes() == paths[3].read_bytes(), "the command does the same"
    assert CliRunner().invoke(app, [*command, *given[:2], "--feedback"]).exit_code == 2
    wide, plain, fed = (open_gguf(path).tensors for path in paths[:3])
    names = [name for name in work.able if fed[name].dtype.quantised]
    moments = work.moments(names)
    assert len(names) > 8 and set(moments) == set(names)
    for name in names:
        off = [wide[name].numpy() - file[name].numpy() for file in (plain, fed)]
        before, after = (float(np.einsum("ij,jk,ik->", part, moments[name], part)) for part in off)
        assert after < before, name
