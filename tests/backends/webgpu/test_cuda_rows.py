"""Steps of one row, by launches of a layer's attention and of what follows it, in clusters: the bits of other steps."""

import numpy as np
import pytest
import tiny
from emulated import EmulatedDevice, EmulatedDriver, header
from gpus import ALL

from weft.backends.webgpu import executable
from weft.backends.webgpu.cuda import driver as calls
from weft.backends.webgpu.cuda.backend import CudaBackend
from weft.backends.webgpu.cuda.device import CudaDevice
from weft.runtime import Decoder, open_checkpoint
from weft.runtime.steps import build_step

CFG = {**tiny.CONFIGS["qwen3"], "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3}
HEADS = {
    "two heads share keys": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128},
    "four heads share keys": {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64},
}


class SmallDriver(EmulatedDriver):
    """A later GPU, whose groups have less memory."""

    capability = "120"


class ClusterDriver(EmulatedDriver):
    capability = "90"

    def attribute(self, which):
        return 1 << 20


def opened(driver, cfg, folder, device=EmulatedDevice):
    """A decoder with halves as weights."""
    tensors = {key: value.astype(np.float16) for key, value in tiny.weights(cfg).items()}
    backend = CudaBackend(device=device(driver(), 0))
    checkpoint = open_checkpoint(tiny.write_folder(folder, cfg, tensors))
    return Decoder(checkpoint, context=128, backend=backend, kv_dtype="f16")


class CompilingDriver(ClusterDriver):
    """Nothing is computed."""

    def load(self, code, shared, early):
        assert code[:4] == b"\x7fELF"

    def launch(self, *given):
        pass


class CompilingDevice(CudaDevice):
    def _code(self, kernel):
        return calls.compile_cubin(kernel.text, kernel.shader.name, self.capability)


def kernels_of(decoder):
    return {shader.name for shader, _ in decoder.backend.device._compiled.values()}


@pytest.mark.parametrize("name", list(HEADS)[: None if ALL else 1])
def test_one_row_has_the_bits_that_it_has_among_others(tmp_path, monkeypatch, name):
    """Up to a second block of keys, which another workgroup of the cluster has; and where a context is too long."""
    header()
    cfg = {**CFG, **HEADS[name]}
    ids = tiny.token_ids(cfg, 66)
    decoder = opened(ClusterDriver, cfg, tmp_path / "model")
    holding, found = decoder.holding(), []
    assert holding.grow(len(ids))
    for start, end in ((0, 1), (1, 63), (63, 64), (64, 65), (65, 66)):
        step = build_step([ids[start:end]], starts=[start], asked=[end - start], pages=[holding.row])
        found.append(decoder.run(step))
    assert {"attend_row", "gated_row"} <= kernels_of(decoder)
    assert np.array_equal(np.concatenate(found), decoder.logits(ids))
    driver = decoder.backend.device.driver
    before, counts = driver.launches, []
    for most in (2, 1):
        monkeypatch.setattr(executable, "ROW_BLOCKS", most)
        assert np.array_equal(decoder.run(step), found[-1])
        counts.append(driver.launches - before)
        before = driver.launches
    assert counts[0] < counts[1]


@pytest.mark.parametrize("driver", [EmulatedDriver, SmallDriver])
def test_gpus_without_clusters_or_memory_have_no_such_launches(tmp_path, driver):
    header()
    cfg = {**CFG, **HEADS["two heads share keys"]}
    decoder = opened(driver, cfg, tmp_path / "model")
    decoder.logits(tiny.token_ids(cfg, 1))
    assert not {"attend_row", "gated_row"} & kernels_of(decoder)


@pytest.mark.parametrize("name, hidden", list(zip([*HEADS, *HEADS], (1024, 256, 768))))
def test_nvrtc_compiles_them(tmp_path, name, hidden):
    """With memory for columns up to 1,024, of which the kernels know how many there are."""
    if calls._compiler() is None or 90 not in calls.architectures():
        pytest.skip(f"libnvrtc is not here, or too old: {calls.INSTALL}")
    cfg = {**CFG, **HEADS[name], "hidden_size": hidden}
    decoder = opened(CompilingDriver, cfg, tmp_path / "model", CompilingDevice)
    holding = decoder.holding()
    assert holding.grow(1)
    decoder.run_top(build_step([[1]], asked=[1], pages=[holding.row]), 1)
    assert {"attend_row", "gated_row"} <= kernels_of(decoder)
