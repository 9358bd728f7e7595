"""Long runs on a GPU: random mixtures, lost devices, many requests; a few of each in `make test`."""

import gc
import logging
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
from gpus import webgpu_only
from soaking import times

import weft
from weft.backends.webgpu.device import open_device
from weft.errors import BackendError
from weft.generate import Request
from weft.runtime import Decoder, open_checkpoint
from weft.runtime.steps import build_step

pytestmark = pytest.mark.soak
AT_ONCE = 50  # requests


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.write_folder(tmp_path_factory.mktemp("soaked"), tiny.CONFIGS["llama-grouped"])


def test_random_mixtures_change_no_bit(gpu, folder):
    """Steps of one to five sequences, each a prompt or a part of it at any position, beside the same alone."""
    decoder = Decoder(open_checkpoint(folder), context=128, kv_tokens=1024, backend=gpu)
    rng = np.random.default_rng(21)
    texts = [rng.integers(0, 59, n).astype(np.int32) for n in (1, 2, 7, 33, 64, 70, 120)]
    alone = [decoder.logits(text) for text in texts]
    for _ in range(times(1000, 6)):
        chosen = rng.choice(len(texts), size=rng.integers(1, 6), replace=False)
        ends = [int(rng.integers(1, len(texts[i]) + 1)) for i in chosen]
        holdings = [decoder.holding() for _ in chosen]
        cuts = [int(rng.integers(0, end)) for end in ends]
        for holding, end in zip(holdings, ends):
            assert holding.grow(end)
        for firsts, lasts in (([0] * len(cuts), cuts), (cuts, ends)):
            some = [at for at in range(len(chosen)) if lasts[at] > firsts[at]]
            if not some:
                continue
            step = build_step(
                [texts[chosen[at]][firsts[at] : lasts[at]] for at in some],
                starts=[firsts[at] for at in some],
                asked=[1] * len(some),
                pages=[holdings[at].row for at in some],
            )
            for at, row in zip(some, decoder.run(step)):
                assert np.array_equal(row, alone[chosen[at]][lasts[at] - 1])
        for holding in holdings:
            holding.release()


def lose(device, monkeypatch):
    """Everything that is submitted from now on says that the device is lost."""

    def lost(_):
        raise device._wgpu.GPUValidationError("Parent device is lost")

    monkeypatch.setattr(device, "queue", SimpleNamespace(submit=lost, write_buffer=lambda *_: None))


@webgpu_only
def test_a_server_loads_a_model_again_after_each_loss_of_its_device(gpu, folder, tmp_path, monkeypatch):
    """A request on the lost device fails; the next one is answered by a new device; the old ones are freed."""
    httpx = pytest.importorskip("httpx")
    pytest.importorskip("uvicorn")
    from weft.serve import BackgroundServer, ModelSpec, Settings

    body = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 3, "temperature": 0}
    monkeypatch.setenv("WEFT_BACKEND", "gpu")
    monkeypatch.setattr(logging.getLogger("weft.serve"), "disabled", True)  # pytest keeps records and their frames
    spec = ModelSpec("m", str(folder), {"context": 96})
    before, devices = open_device(None), []
    running = BackgroundServer(Settings(models=(spec,), port=0))
    with running as server, httpx.Client(base_url=server.url, timeout=600) as client:
        right = client.post("/v1/completions", json=body).json()["choices"]
        used = open_device(None).used_bytes
        for _ in range(times(100, 2)):
            device = open_device(None)
            devices.append(weakref.ref(device))
            with monkeypatch.context() as patch:
                lose(device, patch)
                del device
                failed = client.post("/v1/completions", json=body)
                assert failed.status_code == 500 and "the engine failed" in failed.text
            again = client.post("/v1/completions", json=body)
            assert again.status_code == 200 and again.json()["choices"] == right
        assert client.get("/health").status_code == 200
        gc.collect()
        alive = [one() for one in devices if one() is not None]
        assert [one for one in alive if one is not before] == []
        assert open_device(None).used_bytes <= used
    before.lost = ""  # it was never lost, and other tests of this session use it


def test_many_requests_leak_no_buffer_and_no_page(gpu, folder):
    model = weft.load(str(folder), device="gpu", context=96, kv_tokens=8192)
    engine = weft.Engine(model, max_running=AT_ONCE)
    device, used = model.decoder.backend.device, None
    gc.collect()  # models of the tests before this one
    for first in range(0, times(10_000, 2 * AT_ONCE), AT_ONCE):
        wanted = [Request([1 + n % 50, n % 7, 3], max_tokens=2, ignore_eos=True) for n in range(first, first + AT_ONCE)]
        handles = [engine.submit(one) for one in wanted]
        assert all(len(handle.result().tokens) == 2 for handle in handles)
        used = device.used_bytes if used is None else used
    assert device.used_bytes == used
    engine.close()
    assert model.decoder.pages.free_count == model.decoder.pages.count


@webgpu_only
def test_a_request_on_a_lost_device_fails_with_a_typed_error(gpu, folder, monkeypatch):
    model = weft.load(str(folder), device="gpu", context=96)
    device = model.decoder.backend.device
    monkeypatch.setattr(device, "lost", "")
    with monkeypatch.context() as patch:
        lose(device, patch)
        with pytest.raises(BackendError, match="was lost"):
            model.generate([1, 2, 3], max_tokens=3, ignore_eos=True)
    assert model.info["lost"]
