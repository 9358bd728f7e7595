"""Variables compute what numpy does, gradients go back along the tape once, and misuse is a typed error."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from weft import autograd as ag
from weft import ops
from weft.errors import InputError, ShapeError, UnsupportedError
from weft.ops.registry import find


def wide(*shape, seed=0):
    return ag.Variable(np.random.default_rng(seed).standard_normal(shape), requires_grad=True)


SHAPES = [((3, 4), (3, 4)), ((3, 4), (4,)), ((4,), (3, 4)), ((3, 1), (3, 4)), ((2, 1, 4), (3, 1)), ((3, 4), (1,))]


@pytest.mark.parametrize("a, b", SHAPES)
def test_sums_and_products_broadcast_as_numpy_does(a, b):
    x, y = wide(*a), wide(*b, seed=1)
    np.testing.assert_allclose((x + y).value, x.value + y.value)
    np.testing.assert_allclose((x - y).value, x.value - y.value)
    np.testing.assert_allclose((x * y).value, x.value * y.value)
    r = np.random.default_rng(2).standard_normal(np.broadcast_shapes(a, b))
    assert ag.check_gradients(lambda: ((x * y + x - y) * r).sum(), [x, y]) < 1e-8


KEYS = [0, -1, slice(1, 3), (slice(None), 2), (slice(None), slice(0, 4, 2)), (Ellipsis, 0), ([2, 0, 2],), (None, 1)]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_parts_are_taken_as_numpy_takes_them(key):
    x = wide(3, 4, 5)
    wanted = x.value[key]
    np.testing.assert_array_equal(x[key].value, wanted)
    r = np.random.default_rng(3).standard_normal(wanted.shape)
    assert ag.check_gradients(lambda: (x[key] * r).sum(), [x]) < 1e-8


@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
def test_reductions_are_numpys(axis):
    x = wide(2, 3, 4)
    for mine, theirs in ((x.sum, x.value.sum), (x.mean, x.value.mean), (x.max, x.value.max)):
        wanted = np.asarray(theirs(axis=axis))
        np.testing.assert_allclose(mine(axis).value, wanted.reshape(wanted.shape or (1,)))
    squares = lambda: (x * x).sum(axis).sum() + (x * x).mean(axis).sum() + (x * x).max(axis).sum()  # noqa: E731
    assert ag.check_gradients(squares, [x]) < 1e-8


def test_products_transposes_and_functions_have_the_right_gradients():
    x, y = wide(3, 4), wide(4, 2, seed=1)
    np.testing.assert_allclose((x @ y).value, x.value @ y.value)
    np.testing.assert_array_equal(ag.transposed(wide(2, 3, 4), (1, 2, 0)).value, wide(2, 3, 4).value.transpose(1, 2, 0))
    pairs = {
        "product": lambda: (x @ y).sum(),
        "transposed": lambda: (ag.transposed(x) * np.arange(12.0).reshape(4, 3)).sum(),
        "broadcast": lambda: (ag.broadcast(x, (2, 3, 4)) * np.arange(24.0).reshape(2, 3, 4)).sum(),
        "log_sum_exp": lambda: (ag.log_sum_exp(x) * np.arange(3.0)).sum(),
        "absolute": lambda: (ag.absolute(x) * x).sum(),
        "normalised": lambda: (ag.normalised(x) * np.arange(4.0)).sum(),
        "divided": lambda: ((1.0 - x) / 3.0).sum(),
    }
    for name, function in pairs.items():
        assert ag.check_gradients(function, [x, y] if name == "product" else [x]) < 1e-8, name


@pytest.mark.parametrize("shapes, axis", [([(2, 3), (4, 3), (1, 3)], 0), ([(2, 3), (2, 1)], 1), ([(2, 3, 2)] * 5, -2)])
@pytest.mark.parametrize("backend", [None, "reference"])
def test_parts_are_joined_as_numpy_joins_them(shapes, axis, backend):
    parts = [wide(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    wanted = np.concatenate([one.value for one in parts], axis)
    r = np.random.default_rng(9).standard_normal(wanted.shape)

    def loss_of(*parts):
        whole = ag.concat(parts, axis)
        return (whole * ag.Variable(r)).sum(), whole

    loss, whole = (loss_of if backend is None else ag.compiled(loss_of, backend=backend))(*parts)
    loss.backward()
    np.testing.assert_array_equal(whole.value, wanted)
    np.testing.assert_array_equal(np.concatenate([one.grad for one in parts], axis), r)


@pytest.mark.parametrize("width", [1, 2, 3, 8, 10, 33])
def test_log_sum_exp_neither_overflows_nor_loses_small_numbers(width):
    x = np.random.default_rng(width).standard_normal((4, width)) * 300.0
    top = x.max(axis=1)
    wanted = top + np.log(np.exp(x - top[:, None]).sum(axis=1))
    np.testing.assert_allclose(ag.log_sum_exp(ag.Variable(x)).value, wanted, rtol=1e-12)


def test_an_op_of_the_catalogue_is_called_as_it_is():
    gate, up = wide(2, 3), wide(2, 3, seed=1)
    out = ops.gated(gate, up, kind="silu")
    assert isinstance(out, ag.Variable) and out.requires_grad
    total, normed = ops.add_rms_norm(gate, up, ag.Variable(np.ones(3)), eps=1e-6)
    (total.sum() + normed.sum()).backward()
    assert gate.grad is not None and np.array_equal(gate.grad, up.grad)


def test_gradients_add_up_until_they_are_forgotten():
    x = wide(3)
    (x * x).sum().backward()
    (x * x).sum().backward()
    np.testing.assert_allclose(x.grad, 4 * x.value)
    x.zero_grad()
    assert x.grad is None
    y = x * 2.0
    (y * y + y).sum().backward()  # two ways to the same variable
    np.testing.assert_allclose(x.grad, 8 * x.value + 2)


def test_a_tape_is_walked_once_unless_it_is_kept():
    x = wide(3)
    loss = (x * x).sum()
    loss.backward(keep=True)
    loss.backward()
    np.testing.assert_allclose(x.grad, 4 * x.value)
    with pytest.raises(InputError, match=r"given up by an earlier backward.*keep=True"):
        loss.backward()


def test_a_value_that_was_replaced_does_not_change_the_gradient_of_before():
    x = wide(3)
    first = x.value
    loss = (x * x).sum()
    x.value = first + 1.0
    loss.backward()
    np.testing.assert_allclose(x.grad, 2 * first)


def test_nothing_is_kept_without_gradients():
    x = wide(3)
    with ag.no_grad():
        y = x * 2.0
        with pytest.raises(InputError, match="nothing that this variable depends on requires a gradient"):
            y.sum().backward()
    assert not y.requires_grad and y.node is None and (x * 2.0).requires_grad
    assert not (x * 2.0).detach().requires_grad


def test_a_thread_has_its_own_mode():
    seen = []
    with ag.no_grad():
        thread = threading.Thread(target=lambda: seen.append((wide(2) * 2.0).requires_grad))
        thread.start()
        thread.join()
    assert seen == [True]


def test_types_are_kept_and_numbers_become_float32():
    assert ag.Variable([1, 2]).dtype == np.int32 and ag.Variable([1.0, 2]).dtype == np.float32
    assert ag.Variable(np.ones(2)).dtype == np.float64 and ag.Variable(3.0).shape == (1,)
    assert ag.Variable(np.ones(2, np.float16)).dtype == np.float32
    assert (wide(2) + 0.1).value[0] == wide(2).value[0] + 0.1  # not by way of float32
    x = ag.Variable(np.ones((2, 2), np.float32), requires_grad=True)
    y = (np.ones(2) - x * np.arange(2.0)) @ ag.Variable(np.eye(2, dtype=np.float32))
    y.sum().backward()
    assert y.dtype == x.grad.dtype == np.float32


@pytest.mark.parametrize(
    "call, complaint",
    [
        (lambda: wide(2, 3).backward(), "grad is needed: the variable has several elements"),
        (lambda: wide(2, 3).backward(np.ones(2)), r"grad must be \(2, 3\): got \(2,\)"),
        (lambda: wide(2, 3).item(), "needs a variable of one element"),
        (lambda: wide(2, 3) + wide(2, 4), "cannot be combined"),
        (lambda: wide(2, 3).reshape(4), "must have the 6 elements"),
        (lambda: wide(2, 3).sum(5), "axis must be an axis of"),
        (lambda: wide(2, 3)[5:], "must select at least one element"),
        (lambda: wide(2, 3) @ wide(2, 3), "weight must be|matrix must be"),
        (lambda: ag.Variable([1, 2], requires_grad=True), "requires_grad is for floats"),
        (lambda: ag.Variable(["a"]), "holds floats or integers"),
        (lambda: ag.Variable([2**40]), "must fit 32 bits"),
        (lambda: ag.Variable(wide(2)), "cannot hold another one"),
        (lambda: ag.take(wide(3, 2), [5]), "must be 0 to 2: got 5"),
        (lambda: ag.take(wide(3, 2), [0.5]), "rows must be integers"),
        (lambda: wide(2) * wide(2).value.astype("f4").astype(str), "holds floats or integers"),
        (lambda: ag.broadcast(wide(2, 3), (3, 2)), "must broadcast to"),
        (lambda: ag.dropout(wide(3), 1.0), "p must be 0 or more and below 1"),
        (lambda: ag.activation(wide(3), "swish"), "activation must be one of gelu"),
        (lambda: ag.seed(-1), "must be whole numbers"),
        (lambda: ag.concat([]), "parts must have at least one"),
        (lambda: ag.concat([wide(2, 3), wide(2, 4)]), r"part 1 must be as \(2, 3\), but for axis 0"),
        (lambda: ag.concat([wide(2, 3)], 2), "part 0 must be as"),
    ],
)
def test_misuse_is_an_input_error(call, complaint):
    with pytest.raises(InputError, match=complaint):
        call()


def test_a_shape_stays_and_a_quotient_of_variables_is_unsupported():
    x = ag.Parameter(np.ones(3), "w")
    with pytest.raises(ShapeError, match=r"w must stay \(3,\): got \(4,\)"):
        x.value = np.ones(4)
    with pytest.raises(UnsupportedError, match="divided by numbers only"):
        x / x
    with pytest.raises(UnsupportedError, match="activate_back has no gradient: second derivatives"):
        find("activate_back")(x, x, kind="silu").backward(np.ones(3))


def test_only_who_uses_it_imports_it():
    code = "import sys, weft, weft.embed; assert not {one for one in sys.modules if one.startswith('weft.autograd')}"
    code += "; import weft.autograd; assert 'numpy' not in sys.modules; weft.autograd.Linear(2, 3)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_check_wants_float64():
    with pytest.raises(InputError, match="must be float64 and require a gradient"):
        ag.check_gradients(lambda: ag.Variable(1.0), [ag.Parameter(np.ones(2, np.float32))])
