"""Models are loaded when they are needed, kept within the budget, and never taken from whoever uses them."""

import asyncio
from typing import Any

import pytest

from weft.errors import FormatError, InputError, WeightError
from weft.serve.http.faults import Fault
from weft.serve.models.outline import Outline, outline_of
from weft.serve.models.pool import Entry, Models
from weft.serve.settings import Limits, ModelSpec, model_spec, read_toml, seconds, size_bytes


class FakeRunner:
    """Stands where a loaded model would."""

    kind, waiting, failure = "embed", 0, None

    def __init__(self) -> None:
        self.closed = False
        self.info: dict[str, Any] = {}

    async def close(self) -> None:
        self.closed = True


def pool(sizes: dict[str, int], budget: int = 100, keep_alive_s: float | None = None, **specs: Any) -> Models:
    entries = [
        Entry(ModelSpec(name, name, **specs), Outline("embed", {"weights": size}, 8)) for name, size in sizes.items()
    ]
    models = Models(entries, Limits(), budget_bytes=budget, keep_alive_s=keep_alive_s)
    models.load = lambda entry, limits: FakeRunner()

    async def runner(entry: Entry, loaded: Any) -> Any:
        return loaded

    models._runner = runner  # type: ignore[method-assign]
    return models


def run(work: Any) -> None:
    asyncio.run(work())


def loaded(models: Models) -> list[str]:
    return [entry.name for entry in models if entry.runner is not None]


def test_a_model_is_loaded_once_however_many_ask():
    async def work() -> None:
        models = pool({"a": 10})
        entry, _ = models.find("a")
        assert entry.state == "unloaded"

        async def use() -> Any:
            async with models.lease(entry) as runner:
                await asyncio.sleep(0)
                return runner

        found = await asyncio.gather(*(use() for _ in range(20)))
        assert len(set(map(id, found))) == 1 and models.loads == 1 and entry.leases == 0

    run(work)


def test_the_one_used_longest_ago_makes_room():
    async def work() -> None:
        models = pool({"a": 40, "b": 40, "c": 40})
        for name in ("a", "b", "a", "c"):
            async with models.lease(models.find(name)[0]):
                pass
        assert loaded(models) == ["a", "c"]

    run(work)


def test_a_model_in_use_stays_and_others_are_told_to_wait():
    async def work() -> None:
        models = pool({"a": 60, "b": 60})
        async with models.lease(models.find("a")[0]):
            with pytest.raises(Fault) as caught:
                async with models.lease(models.find("b")[0]):
                    pass
            assert caught.value.status == 503 and caught.value.retry_after_s
            assert loaded(models) == ["a"]
        async with models.lease(models.find("b")[0]):
            assert loaded(models) == ["b"]

    run(work)


def test_a_model_that_is_leased_while_another_goes_stays():
    async def work() -> None:
        models = pool({"a": 40, "b": 40, "c": 80})
        for name in "ab":
            async with models.lease(models.find(name)[0]):
                pass
        going = models.find("a")[0].runner
        closing, close = asyncio.Event(), asyncio.Event()

        async def slowly() -> None:
            closing.set()
            await close.wait()

        going.close = slowly
        wanted = asyncio.create_task(models._ready(models.find("c")[0]))
        await closing.wait()
        async with models.lease(models.find("b")[0]) as runner:
            close.set()
            with pytest.raises(Fault, match="in use"):
                await wanted
            assert not runner.closed

    run(work)


def test_a_model_over_the_budget_is_refused_with_the_numbers():
    async def work() -> None:
        models = pool({"a": 101})
        with pytest.raises(Fault, match=r"101 bytes.*100"):
            async with models.lease(models.find("a")[0]):
                pass
        assert models.find("a")[0].leases == 0

    run(work)


def test_idle_models_go_after_their_keep_alive():
    async def work() -> None:
        models = pool({"a": 10, "b": 10}, keep_alive_s=0)
        models.find("b")[0].keep_alive_s = -1  # for ever
        for name in "ab":
            async with models.lease(models.find(name)[0]):
                await models.unload_idle()
                assert name in loaded(models)
        await models.unload_idle()
        assert loaded(models) == ["b"]

    run(work)


def test_a_model_that_cannot_be_loaded_is_tried_again():
    async def work() -> None:
        models = pool({"a": 10})
        entry, _ = models.find("a")
        working = models.load

        def broken(entry: Entry, limits: Limits) -> Any:
            raise WeightError("weights", "/secret/place is broken")

        models.load = broken
        for _ in range(2):
            with pytest.raises(Fault) as caught:
                async with models.lease(entry):
                    pass
            assert caught.value.status == 503 and "secret" not in caught.value.message
        assert entry.state == "failed"
        models.load = working
        async with models.lease(entry):
            assert entry.state == "ready"

    run(work)


def test_who_waits_for_a_model_may_go_and_it_is_loaded_all_the_same():
    async def work() -> None:
        models = pool({"a": 10})
        entry, _ = models.find("a")

        async def use() -> None:
            async with models.lease(entry):
                pass

        task = asyncio.ensure_future(use())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert entry.leases == 0
        async with models.lease(entry):
            assert models.loads == 1

    run(work)


def test_real_models_are_unloaded_and_loaded_again(serve, specs):
    import httpx

    sizes = {spec.name: outline_of(spec).total_bytes for spec in specs}
    running = serve(budget_bytes=max(sizes.values()) + 1000)
    texts = []
    for model in ("tiny", "plain", "tiny"):
        body = {"model": model, "prompt": "abc", "max_tokens": 4, "seed": 1}
        texts.append(httpx.post(f"{running.url}/v1/completions", json=body, timeout=30).json()["choices"][0]["text"])
        states = {card["id"]: card["state"] for card in httpx.get(f"{running.url}/v1/models").json()["data"]}
        assert [name for name, state in states.items() if state == "ready"] == [model]
    assert texts[0] == texts[2] and running.app.serving.models.loads == 3


def test_names_and_sources_on_the_command_line(tmp_path):
    file = tmp_path / "some.Model-Q4.gguf"
    file.write_bytes(b"")
    assert model_spec(str(file)) == ModelSpec("some.Model-Q4", str(file))
    assert model_spec("chat=org/name:Q4_K_M") == ModelSpec("chat", "org/name:Q4_K_M")
    assert model_spec("smollm2-135m-instruct").name == "smollm2-135m-instruct"
    assert model_spec(str(tmp_path)).name == tmp_path.name


def test_times_and_sizes():
    assert [seconds(text) for text in (5, "5", "5m", "1.5h", "250ms", "-1")] == [5, 5, 300, 5400, 0.25, -1]
    assert [seconds(text) for text in (1e300, "9" * 400, "99999h")] == [-1, -1, -1]
    assert [size_bytes(text) for text in (5, "5k", "1.5G", "2Gi", "3 MB")] == [5, 5000, 1500000000, 2 << 30, 3000000]
    for bad in ("soon", "5x", "", "nan"):
        with pytest.raises(InputError):
            seconds(bad)
        with pytest.raises(InputError):
            size_bytes(bad)


def test_a_toml_file_says_everything_and_mistakes_in_it_are_named(tmp_path):
    path = tmp_path / "weft.toml"
    path.write_text(
        'host = "127.0.0.1"\nport = 9000\nbudget = "2G"\nkeep_alive = "5m"\n[limits]\nrunning = 3\n'
        '[models]\nembed = "bert"\n[models.chat]\nsource = "a.gguf"\ncontext = 512\nkeep_alive = "1h"\npreload = true\n'
    )
    found = read_toml(path)
    assert found["port"] == 9000 and found["budget_bytes"] == 2_000_000_000 and found["keep_alive_s"] == 300
    assert found["limits"].running == 3 and found["limits"].waiting == 256
    assert found["models"] == (
        ModelSpec("embed", "bert"),
        ModelSpec("chat", "a.gguf", {"context": 512}, 3600.0, True),
    )
    for text, named in (
        ("ports = 1", "ports"),
        ("[limits]\nrunnning = 1", "limits.runnning"),
        ("[limits]\nrunning = -1", "limits.running"),
        ("[models.a]\ncontext = 1", "models.a"),
        ('[models.a]\nsource = "b"\ncontxt = 1', "models.a.contxt"),
        ('[models.a]\nsource = "b"\ncontext = "x"', "models.a.context must be a whole number: got 'x'"),
        ('[models.a]\nsource = "b"\nthreads = true', "models.a.threads"),
        ('[models.a]\nsource = "b"\nlabel = 1.5', "models.a.label must be a string or a whole number: got 1.5"),
        ("port = 'x'", "port"),
        ("= 3", "weft.toml"),
    ):
        path.write_text(text)
        with pytest.raises(FormatError, match=named):
            read_toml(path)
