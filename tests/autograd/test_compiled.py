"""A compiled function is the same function: traced once per shape and mode, and what it cannot do is refused."""

import numpy as np
import pytest

from weft import autograd as ag
from weft import ops
from weft.autograd.variable import as_variable
from weft.errors import InputError, UnsupportedError


def data(rows=6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, 8, 8, 1)).astype(np.float32), rng.integers(0, 3, rows)


def network():
    ag.seed(3)
    return ag.Sequential(
        ag.Conv2d(1, 4, 3, padding=1, bias=False), ag.BatchNorm2d(4), ag.Activation("relu"), ag.MaxPool2d(2),
        ag.Dropout(0.3), ag.Flatten(), ag.Linear(64, 3),
    )  # fmt: skip


def gradients(model):
    return {name: one.grad for name, one in model.named_parameters().items()}


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_network_learns_the_same_either_way(backend):
    """Losses, gradients and running statistics of five steps with dropout."""
    found = []
    for compile in (False, True):
        model = network()
        optimiser = ag.AdamW(model.parameters(), 0.01)
        loss_of = lambda x, y: ag.cross_entropy(model(x), y)  # noqa: B023, E731
        function = ag.compiled(loss_of, backend=backend) if compile else loss_of
        losses = []
        for step in range(5):
            ag.seed(9, step)
            optimiser.zero_grad()
            loss = function(*data(seed=step))
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        found.append((losses, model.state_dict()))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=2e-5)
    for name, value in found[0][1].items():
        np.testing.assert_allclose(found[1][1][name], value, atol=3e-4, err_msg=name)  # AdamW divides by small roots


def test_it_is_traced_once_per_shape_and_mode():
    model, calls = network(), []

    @ag.compiled
    def loss_of(x, y):
        calls.append(x.shape)
        return ag.cross_entropy(model(x), y)

    for rows in (4, 4, 6, 4):
        loss_of(*data(rows))
    assert len(calls) == len(loss_of.programs) == 2
    model.eval()
    for _ in range(2):
        loss_of(*data(4))
    assert len(calls) == 3
    with ag.no_grad():
        assert not loss_of(*data(4)).requires_grad
    assert len(calls) == 4
    model.train()
    loss_of(*data(4))
    assert len(calls) == 4
    model[0].weight.requires_grad = False
    loss_of(*data(4)).backward()
    assert len(calls) == 5 and model[0].weight.grad is None and model[1].bias.grad is not None


def test_a_program_reads_parameters_and_buffers_at_every_call():
    model = network().eval()
    x, _ = data(4)
    x.flags.writeable = False
    run = ag.compiled(lambda x: model(x))
    with ag.no_grad():
        run(x)
        for name, one in {**model.named_parameters(), "mean": model[1].running_mean}.items():
            one.value = one.value + 0.25
            np.testing.assert_allclose(run(x).value, model(x).value, atol=1e-4, err_msg=name)


def test_gradients_of_several_results_are_the_first_ones():
    model = network().eval()
    x, y = data(4)
    loss, scores = ag.compiled(lambda x, y: (ag.cross_entropy(model(x), y), model(x)))(x, y)
    assert loss.requires_grad and not scores.requires_grad and scores.shape == (4, 3)
    (loss * 3.0).backward()  # it goes on along the tape
    tripled = gradients(model)
    model.zero_grad()
    ag.cross_entropy(model(x), y).backward()
    for name, grad in gradients(model).items():
        np.testing.assert_allclose(tripled[name], 3 * grad, atol=1e-5, err_msg=name)


def test_a_parameter_may_be_used_in_several_ways():
    """As a table, as a matrix, in a sum and in a product: a tied embedding, with a penalty."""
    table, bias = ag.Parameter(np.random.default_rng(0).standard_normal((7, 4))), ag.Parameter(np.ones(7))
    ids, wanted = np.asarray([[1, 2], [6, 1]]), np.asarray([[2, 0], [1, 1]])

    def loss_of(ids, wanted):
        logits = ag.linear(ag.take(table, ids), table, bias) * bias
        return ag.cross_entropy(logits, wanted) + (table * table).sum() * 0.1 + (bias + bias).sum()

    loss_of(ids, wanted).backward()
    eager = table.grad, bias.grad
    table.zero_grad()
    bias.zero_grad()
    ag.compiled(loss_of, backend="reference")(ids, wanted).backward()
    for a, b in zip(eager, (table.grad, bias.grad)):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_a_computed_matrix_has_its_gradient():
    x, w = (ag.Parameter(np.random.default_rng(seed).standard_normal((3, 3))) for seed in (0, 1))

    def loss_of(y):
        scores = ag.softmax(ag.linear(x * y, w * y)) @ (w @ w)
        return (scores * scores).sum()

    y = np.random.default_rng(2).standard_normal(3)
    loss_of(as_variable(y)).backward()
    eager = x.grad, w.grad
    x.zero_grad()
    w.zero_grad()
    ag.compiled(loss_of, backend="reference")(y).backward()
    for a, b in zip(eager, (x.grad, w.grad)):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_no_gradient_goes_back_through_what_was_detached():
    w = ag.Parameter(np.random.default_rng(0).standard_normal((3, 3)))
    x = np.random.default_rng(1).standard_normal((4, 3))

    def loss_of(x):
        scores = ag.linear(x, w)
        with ag.no_grad():
            share = ag.softmax(scores * w.sum()) * 2.0
        return (share * scores * scores.detach()).sum() + (w * w.detach()).sum() * w.detach()[0, :1]

    program = ag.compiled(loss_of, backend="reference")
    for _ in range(2):  # the second time with other values
        loss_of(as_variable(x)).backward()
        eager, w.grad = w.grad, None
        program(x).backward()
        np.testing.assert_allclose(w.grad, eager, rtol=1e-10)
        w.value, w.grad = w.value + 1.0, None
    assert len(program.programs) == 1


def test_batch_norm_does_not_turn_gradients_around_element_by_element():
    """put_rows, the gradient of take_rows, looks at all elements for every 32 of them."""
    norm, x = ag.BatchNorm2d(4), np.random.default_rng(0).standard_normal((4, 6, 6, 4)).astype(np.float32)
    run = ag.compiled(lambda x: (norm(x) * norm(x)).sum())
    run(x)
    (program,) = run.programs
    wide = [program.table[instr.outputs[0]].shape for instr in program.body if instr.op == "put_rows"]
    assert wide and all(shape[0] <= 4 for shape in wide), wide


def test_what_a_loss_does_not_depend_on_has_no_gradient():
    used, unused = ag.Parameter(np.ones(3, np.float32)), ag.Parameter(np.ones(3, np.float32))
    loss, _ = ag.compiled(lambda x: ((x * used).sum(), x * unused))(np.ones((2, 3), np.float32))
    loss.backward()
    assert used.grad.tolist() == [2, 2, 2] and unused.grad is None


def test_arguments_may_have_gradients_and_be_settings():
    @ag.compiled
    def loss_of(x, kind):
        return ag.activation(x, kind).sum()

    x = ag.Variable(np.asarray([[-1.0, 2.0]], np.float32), requires_grad=True)
    loss_of(x, "relu").backward()
    assert x.grad.tolist() == [[0, 1]] and len(loss_of.programs) == 1
    other = ag.Variable(np.asarray([[3.0, -4.0]], np.float32), requires_grad=True)
    loss = loss_of(other, "relu")
    loss.backward()  # the program of the first is not that of its variable
    assert loss.item() == 3 and other.grad.tolist() == [[1, 0]] and x.grad.tolist() == [[0, 1]]
    loss_of(x, "relu2")
    assert len(loss_of.programs) == 2
    with pytest.raises(InputError, match="arguments cannot be compared between calls"):
        loss_of(x, ["relu"])


def test_a_method_may_be_compiled():
    class Doubled(ag.Module):
        def __init__(self):
            self.linear = ag.Linear(3, 2, seed=1)

        @ag.compiled
        def forward(self, x):
            return self.linear(x) * 2.0

    model = Doubled()
    x = np.ones((4, 3), np.float32)
    with ag.no_grad():
        np.testing.assert_allclose(model(x).value, model.linear(x).value * 2, rtol=1e-6)


def test_rows_are_checked_before_kernels_trust_them():
    table = ag.Parameter(np.ones((5, 2), np.float32))
    run = ag.compiled(lambda ids: ag.take(table, ids).sum())
    run(np.asarray([0, 4]))
    for wrong in ([0, 5], [-1, 0]):
        with pytest.raises(InputError, match=r"argument 0 must be 0 to 4: got (5|-1)"):
            run(np.asarray(wrong))


def test_segments_are_checked_too():
    def pooled(x, starts):
        return ops.pool(x, starts, mode="mean").sum()

    run, x = ag.compiled(pooled), np.ones((4, 2), np.float32)
    assert run(x, np.asarray([0, 1, 4])).item() == 4
    with pytest.raises(InputError, match="argument 1 must rise from 0 to 4"):
        run(x, np.asarray([0, 3, 3]))


@pytest.mark.parametrize(
    "function, complaint",
    [
        (lambda x, w: ag.Variable(x.value), "cannot read values while it is traced"),
        (lambda x, w: x * float(w.value.sum()), "cannot read values while it is traced"),
        (lambda x, w: (x @ w).sum().backward(), "backward.. cannot be called inside"),
        (lambda x, w: ops.rms_norm(x, w[0], eps=1e-6), "weight of rms_norm must be a constant"),
        (lambda x, w: ag.cross_entropy(x @ w, as_variable(x).value), "cannot read values"),
    ],
)
def test_what_a_program_cannot_do_is_refused(function, complaint):
    w = ag.Parameter(np.ones((3, 3), np.float32))
    with pytest.raises(UnsupportedError, match=complaint):
        ag.compiled(lambda x: function(x, w))(np.ones((2, 3), np.float32))


def test_a_weight_of_an_op_that_would_go_stale_is_refused():
    w = ag.Parameter(np.ones(3, np.float32))
    with ag.no_grad(), pytest.raises(UnsupportedError, match="weight of rms_norm must be a constant"):
        ag.compiled(lambda x: ops.rms_norm(x, w, eps=1e-6))(np.ones((2, 3), np.float32))


def test_misuse_is_an_input_error():
    x = np.ones((2, 3), np.float32)
    with pytest.raises(InputError, match="must return a variable or a tuple"):
        ag.compiled(lambda x: 3)(x)
    with pytest.raises(InputError, match="depends on no argument"):
        ag.compiled(lambda x: ag.Variable(1.0))(x)
    with pytest.raises(InputError, match="all float32 or all float64"):
        ag.compiled(lambda x, y: x, backend="reference")(x, x.astype(np.float64))
    with pytest.raises(InputError, match="must be float32, as the arguments are"):
        ag.compiled(lambda x: x * ag.Parameter(np.ones(3)))(x)
    with pytest.raises(UnsupportedError, match=r"computes in float32.*reference"):
        ag.compiled(lambda x: x * 2.0, backend="cpu")(ag.Variable(x.astype(np.float64)))
    assert ag.compiled(lambda x: x * 2.0, backend="cpu")(x.astype(np.float64)).dtype == np.float32
    with pytest.raises(InputError, match="nothing that this variable depends on"):
        ag.compiled(lambda x: x * ag.Parameter(np.ones(3, np.float32)))(x).backward()
    with pytest.raises(InputError, match="must not be empty"):
        ag.compiled(lambda x: x * 2.0)(x[:0])


def test_the_programs_of_a_function_are_limited(monkeypatch):
    monkeypatch.setattr("weft.autograd.compilation.MAX_PLANS", 2)
    run = ag.compiled(lambda x: x * 2.0)
    for rows in (1, 2, 1, 3):
        run(np.ones((rows, 2), np.float32))
    assert [program.inputs[0].shape for program in run.programs] == [(1, 2), (3, 2)]


def test_a_failed_trace_leaves_no_trace():
    with pytest.raises(ZeroDivisionError):
        ag.compiled(lambda x: x / 0)(np.ones((2, 3), np.float32))
    assert (ag.Variable(1.0) * 2.0).value.tolist() == [2.0]
