"""What needs no GPU: the preprocessor of shaders, devices by name, and what weft says where there is none."""

import sys

import numpy as np
import pytest
from click.testing import CliRunner
from tiny_chat_folder import write_chat_folder

from weft.backends import _automatic, open_backend
from weft.backends.webgpu import device as devices
from weft.backends.webgpu.launch import KERNELS, bits
from weft.backends.webgpu.shader import shader, shader_names
from weft.cli.app import app
from weft.errors import BackendError, NotFoundError
from weft.ops.registry import catalogue
from weft.ops.spec import Dim


def test_every_kernel_is_an_op_with_a_shader_of_its_name():
    assert set(KERNELS) <= set(catalogue())
    assert set(KERNELS) <= shader_names()


def test_the_preprocessor_takes_parts_includes_files_and_declares_what_is_bound():
    made = shader("matmul", (("DTYPE", "f16"), ("ACTIVATION", "silu"), ("BIAS", "1"), ("WHOLE", "True")))
    assert "#" not in made.text.replace("#[", "") and "{{" not in made.text
    assert "fn widened(" in made.text and made.text.count("fn activated(") == 1
    assert "@binding(3) var<storage, read> bias: array<f32>;" in made.text
    assert made.written == (False, False)
    assert made.params[0] == ("x", "u32")
    plain = shader("matmul", (("DTYPE", "f32"), ("ACTIVATION", "none"), ("BIAS", "0"), ("WHOLE", "")))
    assert " bias:" not in plain.text and plain.written == (False,)


def test_a_parameter_is_a_linear_form_or_the_bits_of_a_number():
    assert bits(Dim(3, 1, 0, 7)) == (3, 1, 0, 7)
    assert bits(5) == (0, 0, 0, 5)
    assert np.array([bits(0.5)[3]], np.uint32).view(np.float32)[0] == 0.5


def test_a_missing_package_is_named_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "wgpu", None)
    with pytest.raises(BackendError, match=r"wgpu.*pip install weft-engine\[gpu\]"):
        devices.import_wgpu()


def test_a_machine_without_a_gpu_says_what_to_install(monkeypatch):
    monkeypatch.setattr(devices, "adapters", tuple)
    with pytest.raises(NotFoundError, match=r"no GPU.*driver"):
        devices.find_adapter(None)


def test_a_gpu_that_is_not_there_is_answered_with_those_that_are(monkeypatch):
    one = devices.Adapter(0, "Card", "DiscreteGPU", "Vulkan", "", {}, frozenset(), None)
    monkeypatch.setattr(devices, "adapters", lambda: (one,))
    assert devices.find_adapter(None) is one
    with pytest.raises(NotFoundError, match=r"gpu:3.*gpu:0 Card"):
        devices.find_adapter(3)


def test_auto_is_the_cpu_where_there_is_no_gpu_and_says_so_once(monkeypatch, capfd):
    import weft.backends.webgpu
    from weft.backends.webgpu.cuda import driver

    monkeypatch.setattr(driver, "_driver", lambda: None)
    software = devices.Adapter(0, "llvmpipe", "CPU", "Vulkan", "", {}, frozenset(), None)
    monkeypatch.setattr(weft.backends.webgpu, "adapters", lambda: (software,))
    _automatic.cache_clear()
    try:
        assert [open_backend("auto").name[:4] for _ in range(3)] == ["cpu-"] * 3
    finally:
        _automatic.cache_clear()
    assert capfd.readouterr().err.count("device auto is the CPU") == 1


def test_the_command_refuses_a_device_that_is_none():
    result = CliRunner().invoke(app, ["embed", "a", "--device", "tpu"])
    assert result.exit_code == 2
    assert "'tpu' is not a device" in result.output


def test_cuda_without_a_driver_says_what_is_missing(monkeypatch, tmp_path):
    from weft.backends.webgpu.cuda import device, driver

    monkeypatch.setenv("WEFT_BACKEND", "cpu")  # which --device sets for the process; as before after the test
    monkeypatch.setattr(driver, "_driver", lambda: None)
    device._opened.cache_clear()
    model = str(write_chat_folder(tmp_path / "chat", {}))
    result = CliRunner().invoke(app, ["generate", "a", "--model", model, "--device", "cuda"])
    assert result.exit_code == 1
    assert "NVIDIA's driver is not here" in result.output
