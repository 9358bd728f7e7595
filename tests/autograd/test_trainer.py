"""A trainer learns, stops early, refuses what is not finite, and goes on from a checkpoint with the same bits."""

import json
from pathlib import Path

import numpy as np
import pytest

from weft import autograd as ag
from weft.errors import BackendError, FormatError, InputError, NotFoundError
from weft.weights import open_safetensors, write_safetensors

DIGITS = Path(__file__).resolve().parent.parent / "golden" / "autograd" / "digits.npz"


def rows(count=60, seed=0):
    """Points in the plane, in three classes by their angle."""
    x = np.random.default_rng(seed).standard_normal((count, 2)).astype(np.float32)
    return x, ((np.arctan2(x[:, 1], x[:, 0]) + np.pi) // (2 * np.pi / 3)).clip(0, 2).astype(np.int64)


class Killed(Exception):
    pass


def trainer(folder=None, *, kind=ag.AdamW, schedule=None, **options):
    ag.seed(7)
    net = ag.Sequential(ag.Linear(2, 16), ag.BatchNorm1d(16), ag.Activation("tanh"), ag.Dropout(0.2), ag.Linear(16, 3))
    metrics = {"accuracy": ag.accuracy}
    return ag.Trainer(net, kind(net.parameters(), 0.02), ag.cross_entropy, metrics=metrics, schedule=schedule,
                      folder=folder, seed=3, **options)  # fmt: skip


def loaders():
    return ag.DataLoader(rows(), 8, shuffle=True, seed=5), ag.DataLoader(rows(40, 1), 16)


def bits(made):
    return {name: value.tobytes() for name, value in made.model.state_dict().items()}


@pytest.mark.parametrize("compile", [False, True], ids=["eager", "compiled"])
def test_a_network_learns(compile):
    made = trainer(compile=compile)
    history = made.fit(*loaders(), epochs=8)
    assert [row["epoch"] for row in history] == list(range(8)) and history[-1]["step"] == 8 * 8
    assert history[-1]["valid_loss"] < 0.6 * history[0]["valid_loss"] and history[-1]["valid_accuracy"] > 0.85
    assert made.predict(rows(40, 1)[0]).shape == (40, 3) and made.model.training


CASES = {
    "adamw, cosine": {"schedule": lambda: ag.WarmUp(4, ag.Cosine(40)), "compile": True},
    "sgd, plateau": {
        "kind": lambda p, lr: ag.SGD(p, lr, 0.9),
        "schedule": lambda: ag.Plateau(0.5, 0, threshold=0.5),
    },
    "rmsprop, clipped": {"kind": ag.RMSProp, "schedule": lambda: None, "clip_norm": 0.5, "clip_value": 0.3},
}


@pytest.mark.parametrize("case", CASES)
def test_a_killed_run_goes_on_with_the_same_bits(tmp_path, case):
    options = dict(CASES[case])
    schedule = options.pop("schedule")

    def made(name, **more):
        watching = {"stopping": ag.EarlyStopping(9), "save_every": 3, "schedule": schedule()}
        return trainer(tmp_path / name, **options, **watching, **more)

    whole = made("whole")
    wanted = whole.fit(*loaders(), epochs=3)

    for kill_at in (
        (1, 13, 16) if options.get("compile") else (13,)
    ):  # before any checkpoint, in an epoch, at one's start

        def kill(row, kill_at=kill_at):
            if row["step"] == kill_at:
                raise Killed

        with pytest.raises(Killed):
            made(f"killed {kill_at}", on_step=kill).fit(*loaders(), epochs=3)
        again = made(f"killed {kill_at}")
        assert again.fit(*loaders(), epochs=3, resume=True) == wanted
        assert bits(again) == bits(whole)
        files = [(tmp_path / name / "last.safetensors").read_bytes() for name in ("whole", f"killed {kill_at}")]
        assert files[0] == files[1]


def test_it_stops_where_nothing_gets_better_and_keeps_the_best(tmp_path):
    made = trainer(tmp_path, stopping=ag.EarlyStopping(2, monitor="valid_accuracy", higher_is_better=True, least=0.02))
    history = made.fit(*loaders(), epochs=60)
    accuracies = [row["valid_accuracy"] for row in history]
    assert len(history) < 60
    best = 0
    for epoch, value in enumerate(accuracies):
        best = epoch if value > accuracies[best] + 0.02 else best
    assert len(history) == best + 3
    assert made.evaluate(loaders()[1])["accuracy"] == accuracies[best]
    more = trainer(tmp_path, stopping=ag.EarlyStopping(2, monitor="valid_accuracy", higher_is_better=True, least=0.02))
    assert more.fit(*loaders(), epochs=60, resume=True) == history  # it stays stopped


def test_a_loss_that_is_not_finite_is_an_error_or_left_out():
    x, y = rows()
    x[20] = np.inf
    loader = ag.DataLoader((x, y), 8)
    made = trainer()
    said = r"loss of step 2, or its gradient, is not finite.*nonfinite"
    with np.errstate(invalid="ignore"), pytest.raises(BackendError, match=said):
        made.fit(loader, epochs=1)
    made = trainer(nonfinite="skip")
    with np.errstate(invalid="ignore"):
        made.fit(loader, epochs=1)
    assert made.skipped == 1 and made.step == 8
    assert all(np.isfinite(value).all() for value in made.model.state_dict().values())


def test_checkpoints_of_other_runs_and_files_are_refused(tmp_path):
    made = trainer(tmp_path)
    made.fit(*loaders(), epochs=1)
    with pytest.raises(InputError, match=r"was saved by a run with .*AdamW.*this one has .*SGD"):
        trainer(tmp_path, kind=ag.SGD).fit(*loaders(), epochs=2, resume=True)
    with pytest.raises(InputError, match="with 8 batches an epoch; this one has 15"):
        trainer(tmp_path).fit(ag.DataLoader(rows(), 4), epochs=2, resume=True)
    write_safetensors(tmp_path / "other.safetensors", {"a": np.zeros(1)})
    with pytest.raises(FormatError, match="is not a checkpoint of a Trainer"):
        made.load(tmp_path / "other.safetensors")
    with pytest.raises(NotFoundError, match="checkpoint does not exist"):
        made.load(tmp_path / "none.safetensors")
    with open_safetensors(tmp_path / "last.safetensors") as file:
        assert json.loads(file.metadata["run"])["step"] == 8
    for wrong in (
        lambda: trainer().fit(*loaders(), epochs=0),
        lambda: trainer().fit(*loaders(), epochs=1, resume=True),
        lambda: trainer(nonfinite="ignore"),
        lambda: trainer(save_every=2),
        lambda: trainer(stopping=ag.EarlyStopping(2, monitor="nothing")).fit(*loaders(), epochs=1),
        lambda: ag.EarlyStopping(0),
    ):
        with pytest.raises(InputError):
            wrong()


class Everything(ag.Module):
    """A convolution with batch norm, an LSTM over its rows, a transformer block over those."""

    def __init__(self):
        self.conv, self.norm, self.pool = ag.Conv2d(1, 4, 3, padding=1), ag.BatchNorm2d(4), ag.MaxPool2d(2)
        self.cell, self.mix, self.head = ag.LSTM(16, 8), ag.TransformerBlock(8, 2, 12), ag.Linear(8, 3)

    def forward(self, x):
        seen = self.pool(ag.activation(self.norm(self.conv(x)), "relu"))
        steps, _ = self.cell(seen.reshape(seen.shape[0], 4, 16))
        return self.head(self.mix(steps).mean(1))


@pytest.mark.parametrize("dtype, backend, limit", [(np.float64, None, 1e-9), (np.float32, "cpu", 2e-5)])
def test_a_training_of_twenty_steps_is_pytorchs(training, dtype, backend, limit):
    case = training["whole"]
    net = Everything().to(dtype)
    for name, one in net.named_parameters().items():
        one.value = case[f"param.{name.replace('cell.cell', 'cell')}"]
    early = [*net.conv.parameters(), *net.norm.parameters()]
    late = [*net.cell.parameters(), *net.mix.parameters(), *net.head.parameters()]
    optimiser = ag.AdamW([{"params": early, "lr": 0.02}, {"params": late}], 0.01, weight_decay=0.05)
    losses = []
    trainer = ag.Trainer(
        net, optimiser, lambda found, wanted: ag.cross_entropy(found, wanted, label_smoothing=0.1), clip_norm=0.5,
        schedule=ag.Cosine(20), compile=backend is not None, on_step=lambda row: losses.append(row["loss"]),
    )  # fmt: skip
    order = [(step * 16 + row) % 48 for step in range(20) for row in range(16)]
    trainer.fit(ag.DataLoader((case["x"].astype(dtype)[order], case["target"][order]), 16), epochs=1)
    np.testing.assert_allclose(losses, case["out"], rtol=limit)
    assert losses[-1] < 0.8 * losses[0]


def test_a_small_convolutional_network_reads_digits():
    """Above 97 % on digits it has not seen; docs/howto/train-a-small-net.md walks through it."""
    with np.load(DIGITS) as file:
        x, y = file["images"][..., None].astype(np.float32) / 16, file["digits"].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]
    ag.seed(0)
    net = ag.Sequential(
        ag.Conv2d(1, 16, 3, padding=1), ag.Activation("relu"), ag.MaxPool2d(2),
        ag.Conv2d(16, 32, 3, padding=1), ag.Activation("relu"), ag.MaxPool2d(2),
        ag.Flatten(), ag.Dropout(0.25), ag.Linear(128, 10),
    )  # fmt: skip
    train = ag.DataLoader((x[:1437], y[:1437]), 32, shuffle=True)
    made = ag.Trainer(net, ag.AdamW(net.parameters(), 3e-3), ag.cross_entropy, metrics={"accuracy": ag.accuracy},
                      schedule=ag.Cosine(10 * len(train)), compile=True)  # fmt: skip
    history = made.fit(train, ag.DataLoader((x[1437:], y[1437:]), 360), epochs=10)
    assert history[-1]["valid_accuracy"] > 0.97, history[-1]
