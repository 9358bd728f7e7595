"""Outputs and gradients of PyTorch's modules, losses, optimisers and schedules, in float64: modules.npz, training.npz.

    python tests/golden/autograd/make_autograd.py

Images and kernels are [.., height, width, channels] here, as in weft.autograd. Inputs and parameters are float32
numbers, so that weft reads the very ones that PyTorch did. The loss of a module is the sum of its result times `r`.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from made_with import note_versions  # noqa: E402

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
FOUND: dict[str, np.ndarray] = {}


def rounded(tensor):
    return tensor.detach().float().double()


def random(*shape, scale=1.0):
    return rounded(torch.randn(*shape) * scale)


def leaf(tensor):
    return rounded(tensor).clone().requires_grad_(True)


def keep(case, **values):
    for name, value in values.items():
        array = value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        exact = array.dtype == np.float64 and name.split(".")[0] in ("x", "r", "param", "state", "target", "buffer")
        FOUND[f"{case}/{name}"] = array.astype(np.float32) if exact else array


def record(case, out, leaves, r=None, **more):
    """Differentiate sum(out * r) and keep everything."""
    r = random(*out.shape) if r is None else r
    (out * r).sum().backward()
    keep(case, out=out, r=r, **{f"grad.{name}": one.grad for name, one in leaves.items()}, **more)
    keep(case, **{(name if name.startswith("x") else f"param.{name}"): one for name, one in leaves.items()})


def module(case, made, x, names=None, call=None):
    """A module of PyTorch with parameters rounded to float32."""
    for one in made.parameters():
        one.data = rounded(one.data + torch.randn_like(one) * 0.1)
    leaves = {(names or {}).get(name, name): one for name, one in made.named_parameters()}
    leaves["x"] = x
    record(case, (call or made)(x), leaves)


def layers():
    module("linear", nn.Linear(5, 3), leaf(random(2, 4, 5)))
    table, ids = leaf(random(7, 4)), torch.tensor([[1, 6, 1], [0, 2, 6]])
    record("embedding", F.embedding(ids, table), {"weight": table}, ids=ids.numpy())
    module("layer_norm", nn.LayerNorm(6), leaf(random(2, 3, 6)))
    module("rms_norm", nn.RMSNorm(6, eps=1e-6), leaf(random(2, 3, 6)))
    kinds = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}
    kinds |= {
        "softplus": F.softplus,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "relu2": lambda x: F.relu(x) ** 2,
    }
    for kind, function in kinds.items():
        x = leaf(random(3, 5, scale=2.0))
        record(f"activation.{kind}", function(x), {"x": x})
    x = leaf(random(3, 5))
    record("softmax", F.softmax(x, -1), {"x": x})
    x = leaf(random(3, 5))
    record("log_softmax", F.log_softmax(x, -1), {"x": x})
    x = leaf(random(3, 5))
    record("leaky_relu", F.leaky_relu(x, 0.1), {"x": x})


def images():
    def first(x):
        return x.permute(0, 3, 1, 2)

    def last(x):
        return x.permute(0, 2, 3, 1)

    options = {
        "conv2d": {}, "conv2d.padded": {"padding": 1}, "conv2d.strided": {"stride": (2, 1), "padding": (1, 0)},
        "conv2d.dilated": {"dilation": 2, "padding": 2},
    }  # fmt: skip
    for case, given in options.items():
        x, weight, bias = leaf(random(2, 6, 5, 3)), leaf(random(4, 3, 2, 3, scale=0.3)), leaf(random(4))
        record(case, last(F.conv2d(first(x), first(weight), bias, **given)), {"x": x, "weight": weight, "bias": bias})
    for case, (window, stride, padding) in {
        "": (2, 2, 0),
        ".overlapping": (3, 2, 1),
        ".wide": ((2, 3), (1, 2), (1, 1)),
    }.items():
        x = leaf(random(2, 6, 6, 3))
        record(f"max_pool2d{case}", last(F.max_pool2d(first(x), window, stride, padding)), {"x": x})
        x = leaf(random(2, 6, 6, 3))
        record(f"avg_pool2d{case}", last(F.avg_pool2d(first(x), window, stride, padding)), {"x": x})
    for case, shape, made in (("1d", (6, 3), nn.BatchNorm1d(3)), ("2d", (2, 4, 3, 3), nn.BatchNorm2d(3))):
        for one in made.parameters():
            one.data = rounded(one.data + torch.randn_like(one) * 0.3)
        turn, back = (first, last) if case == "2d" else (lambda x: x, lambda x: x)
        earlier = random(*shape, scale=2.0)
        made(turn(earlier))
        x = leaf(random(*shape) + 1.0)
        leaves = {"weight": made.weight, "bias": made.bias, "x": x}
        record(f"batch_norm{case}", back(made(turn(x))), leaves, **{"x.earlier": earlier})
        keep(f"batch_norm{case}", mean=made.running_mean, var=made.running_var)
        made.eval()
        made.zero_grad()
        x = leaf(random(*shape))
        record(f"batch_norm{case}.eval", back(made(turn(x))), {**leaves, "x": x})


def sequences():
    for case, made in (("lstm_cell", nn.LSTMCell(3, 4)), ("gru_cell", nn.GRUCell(3, 4))):
        for one in made.parameters():
            one.data = rounded(one.data)
        x, h, c = leaf(random(2, 3)), leaf(random(2, 4)), leaf(random(2, 4))
        leaves = {**dict(made.named_parameters()), "x": x, "x.h": h}
        if case == "lstm_cell":
            record(case, torch.cat(made(x, (h, c)), 1), {**leaves, "x.c": c})
        else:
            record(case, made(x, h), leaves)
    for case, made in (("lstm", nn.LSTM(3, 4, batch_first=True)), ("gru", nn.GRU(3, 4, batch_first=True))):
        names = {f"{kind}_l0": f"cell.{kind}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        module(case, made, leaf(random(2, 5, 3)), names, lambda x, made=made: made(x)[0])
    for case, mask in (("attention", None), ("attention.causal", nn.Transformer.generate_square_subsequent_mask(5))):
        made = nn.MultiheadAttention(8, 2, batch_first=True)
        module(case, made, leaf(random(3, 5, 8)), call=lambda x, m=made, mask=mask: m(x, x, x, attn_mask=mask)[0])
    for case, norm_first in (("transformer", True), ("transformer.post", False)):
        made = nn.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu", batch_first=True, norm_first=norm_first)
        names = {name: name.replace("self_attn", "attention") for name, _ in made.named_parameters()}
        module(case, made, leaf(random(2, 5, 8)), names)


def losses():
    wanted = torch.tensor([2, 0, 4, 4, 1])
    cases = {
        "cross_entropy": {}, "cross_entropy.smooth": {"label_smoothing": 0.1},
        "cross_entropy.sum": {"reduction": "sum"},
        "cross_entropy.weighted": {"weight": torch.tensor([1.0, 0.5, 2.0, 1.0, 0.25]), "label_smoothing": 0.2},
        "cross_entropy.ignored": {"ignore_index": 4},
    }  # fmt: skip
    one = torch.ones(())
    for case, options in cases.items():
        x = leaf(random(5, 5, scale=3.0))
        record(case, F.cross_entropy(x, wanted, **options), {"x": x}, r=one, target=wanted.numpy())
    pairs = {
        "mse": F.mse_loss, "l1": F.l1_loss, "huber": lambda x, t: F.huber_loss(x, t, delta=0.7),
        "cosine_distance": lambda x, t: (1 - F.cosine_similarity(x, t)).mean(),
    }  # fmt: skip
    for case, function in pairs.items():
        x, target = leaf(random(4, 3)), random(4, 3)
        record(case, function(x, target), {"x": x}, r=one, target=target)
    x, target = leaf(random(4, 3, scale=3.0)), rounded(torch.rand(4, 3))
    record("bce_with_logits", F.binary_cross_entropy_with_logits(x, target), {"x": x}, r=one, target=target)
    x = leaf(random(4, 3, scale=3.0))
    heavy = F.binary_cross_entropy_with_logits(x, target, pos_weight=torch.tensor(3.0))
    record("bce_with_logits.heavy", heavy, {"x": x}, r=one, target=target)
    x, target = leaf(random(4, 3)), F.softmax(random(4, 3), -1)
    loss = F.kl_div(F.log_softmax(x, -1), target, reduction="batchmean")
    record("kl_divergence", loss, {"x": x}, r=one)
    FOUND["kl_divergence/target"] = target.numpy()
    x, target = leaf(random(6)), torch.tensor([1.0, -1, 1, -1, -1, 1])
    record("hinge", torch.clamp(1 - x * target, min=0).mean(), {"x": x}, r=one, target=target)


OPTIMISERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd.momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "sgd.nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {"lr": 0.05, "betas": (0.8, 0.95), "weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, {"lr": 0.05, "weight_decay": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.02}),
    "rmsprop.centred": (torch.optim.RMSprop, {"lr": 0.02, "centered": True, "momentum": 0.5, "weight_decay": 0.1}),
}
STEPS = 12


def optimisers():
    first, second = random(3, 2), random(4)
    keep("optimiser", **{"param.first": first, "param.second": second})
    gradients = [(random(3, 2), random(4)) for _ in range(STEPS)]
    for number, part in enumerate(("x.first", "x.second")):
        keep("optimiser", **{part: torch.stack([pair[number] for pair in gradients])})
    for case, (kind, options) in OPTIMISERS.items():
        a, b = leaf(first), leaf(second)
        made = kind([{"params": [a]}, {"params": [b], "lr": options["lr"] / 2}], **options)
        path = []
        for one, two in gradients:
            a.grad, b.grad = one.clone(), two.clone()
            made.step()
            path.append(torch.cat([a.detach().reshape(-1), b.detach()]))
        keep(f"optimiser.{case}", out=torch.stack(path))


def whole():
    """Losses of 20 steps of a network with nearly everything in it, on noise that has a pattern."""
    rows, first = 48, lambda x: x.permute(0, 3, 1, 2)
    x, y = random(rows, 8, 8, 1), torch.arange(rows) % 3
    x += 0.5 * y[:, None, None, None] * torch.linspace(-1, 1, 8)[:, None]
    x = rounded(x)
    conv, norm, cell, mix, head = (
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.LSTM(16, 8, batch_first=True),
        nn.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu", batch_first=True, norm_first=True), nn.Linear(8, 3),
    )  # fmt: skip
    kept = {"conv.weight": conv.weight.permute(0, 2, 3, 1)}
    for name, made in {"conv": conv, "norm": norm, "cell": cell, "mix": mix, "head": head}.items():
        for part, one in made.named_parameters():
            one.data = rounded(one.data)
            kept.setdefault(f"{name}.{part.replace('_l0', '').replace('self_attn', 'attention')}", one)
    kept["conv.weight"] = conv.weight.permute(0, 2, 3, 1)
    keep("whole", x=x, **{f"param.{name}": one.clone() for name, one in kept.items()}, target=y.numpy())
    groups = [{"params": [*conv.parameters(), *norm.parameters()], "lr": 0.02},
              {"params": [*cell.parameters(), *mix.parameters(), *head.parameters()]}]  # fmt: skip
    optimiser = torch.optim.AdamW(groups, lr=0.01, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 20)
    losses = []
    for step in range(20):
        at = torch.arange(step * 16, step * 16 + 16) % rows
        seen = F.max_pool2d(F.relu(norm(conv(first(x[at])))), 2)  # [16, 4, 4, 4]
        steps = cell(seen.permute(0, 2, 3, 1).reshape(16, 4, 16))[0]
        loss = F.cross_entropy(head(mix(steps).mean(1)), y[at], label_smoothing=0.1)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([one for group in groups for one in group["params"]], 0.5)
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
    keep("whole", out=np.asarray(losses))


def rates(make, observed=None):
    parameter = torch.zeros(1, requires_grad=True)
    optimiser = torch.optim.SGD([parameter], lr=0.1)
    schedule = make(optimiser)
    found = []
    for step in range(30):
        if observed is None:
            found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step(*([] if observed is None else [observed[step]]))
        if observed is not None:
            found.append(optimiser.param_groups[0]["lr"])
    return np.asarray(found)


def schedules():
    lr = torch.optim.lr_scheduler
    keep("schedule", step=rates(lambda o: lr.StepLR(o, 7, 0.5)))
    keep("schedule", cosine=rates(lambda o: lr.CosineAnnealingLR(o, 29, eta_min=0.01)))
    keep("schedule", line=rates(lambda o: lr.LinearLR(o, 1.0, 0.2, 20)))
    warm = lambda o: lr.SequentialLR(  # noqa: E731
        o, [lr.LinearLR(o, 0.1, 1.0, 6), lr.CosineAnnealingLR(o, 24)], milestones=[6]
    )
    keep("schedule", warm=rates(warm))
    observed = np.abs(np.random.default_rng(3).standard_normal(30)).cumsum()[::-1] * 0.01
    observed[8:20] = observed[8]
    plateau = rates(lambda o: lr.ReduceLROnPlateau(o, factor=0.3, patience=2, cooldown=1, min_lr=0.002), observed)
    keep("schedule", plateau=plateau, observed=observed)


def clipping():
    gradients = [random(3, 2), random(4)]
    for most in (0.5, 100.0):
        leaves = [torch.zeros_like(one, requires_grad=True) for one in gradients]
        for one, grad in zip(leaves, gradients):
            one.grad = grad.clone()
        norm = nn.utils.clip_grad_norm_(leaves, most)
        out = torch.cat([one.grad.reshape(-1) for one in leaves])
        keep(f"clip_norm.{most:g}", norm=norm, out=out, **{"x.0": gradients[0], "x.1": gradients[1]})
    leaves = [torch.zeros_like(one, requires_grad=True) for one in gradients]
    for one, grad in zip(leaves, gradients):
        one.grad = grad.clone()
    nn.utils.clip_grad_value_(leaves, 0.4)
    keep(
        "clip_value",
        out=torch.cat([one.grad.reshape(-1) for one in leaves]),
        **{"x.0": gradients[0], "x.1": gradients[1]},
    )


def main():
    for name, makers in {
        "modules": (layers, images, sequences, losses),
        "training": (optimisers, schedules, clipping, whole),
    }.items():
        FOUND.clear()
        for make in makers:
            make()
        path = HERE / f"{name}.npz"
        np.savez_compressed(path, **FOUND)
        note_versions(path, "torch", "numpy")
        print(path.name, len(FOUND), path.stat().st_size)


if __name__ == "__main__":
    main()
