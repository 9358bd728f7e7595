"""The list of launches: what a device would be given for it is what the backend gives, and wrong lists are refused."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from static_site import HERE, RUNTIME, Site
from tiny_chat import write_chat_model

from weft.backends.webgpu.listing import ListBackend
from weft.errors import UnsupportedError
from weft.export import export
from weft.runtime import Decoder, open_checkpoint

SIZES = {"T": 7, "B": 1, "L": 1, "blocks": 0}
Change = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("chat") / "tiny.gguf")


@pytest.fixture(scope="module")
def bundle(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(str(chat_model), tmp_path_factory.mktemp("bundle") / "chat.weft", compute="f32", gpu=True).path


def read(bundle: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((bundle / name).read_text())
    return found


@pytest.fixture(scope="module")
def told(node: str, bundle: Path) -> Callable[..., list[dict[str, Any]]]:
    def ask(lists: list[Any], **manifest: Any) -> list[dict[str, Any]]:
        given = {"manifest": read(bundle, "manifest.json") | manifest, "lists": lists, "sizes": SIZES}
        command = [node, str(HERE / "lists.mjs"), str(RUNTIME)]
        done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    return ask


def test_a_step_takes_the_memory_that_the_plan_says(told, bundle: Path, chat_model: Path) -> None:
    (answer,) = told([read(bundle, "gpu.json")])
    options: dict[str, Any] = {"draft_head": False, "bind": False, "threads": 1, "compute": "f32"}
    prepared = Decoder(open_checkpoint(chat_model), backend=ListBackend(), kv_dtype="f32", **options).prepared
    inputs_and_outputs = answer["bytes"] - prepared.work_bytes(T=7, B=1, L=1)
    outputs = 4 * prepared.program.outputs[0].shape[1]
    assert outputs <= inputs_and_outputs <= outputs + 4096
    assert 0 < answer["used"] < len(read(bundle, "gpu.json")["launches"])
    assert answer["needs"]["bindings"] <= 8


def test_every_weight_of_the_program_is_in_the_list_once(bundle: Path) -> None:
    """Rows of matrices that lie together and of those that are cut, each once."""
    about, manifest = read(bundle, "gpu.json"), read(bundle, "manifest.json")
    rows: dict[str, int] = {}
    for buffer in about["buffers"]:
        for piece in buffer.get("pieces", []):
            rows[piece["weight"]] = rows.get(piece["weight"], 0) + piece.get("rows", 0)
    shapes = {entry["name"]: entry["shape"] for entry in manifest["weights"]}
    assert rows.keys() <= shapes.keys()
    assert all(count in (0, shapes[name][0]) for name, count in rows.items())
    assert any(len(buffer.get("pieces", [])) > 1 for buffer in about["buffers"])


WRONG: list[Change] = [
    lambda about: about.update(launches=None),
    lambda about: about["launches"][0].update(shader=99),
    lambda about: about["launches"][0].update(params=[1]),
    lambda about: about["launches"][0]["params"].__setitem__(0, [1, 2, 3]),
    lambda about: about["launches"][0]["params"].__setitem__(0, 0.5),
    lambda about: about["launches"][0]["params"].__setitem__(0, 1 << 40),
    lambda about: about["launches"][0].update(buffers=[]),
    lambda about: about["launches"][0].update(per=0),
    lambda about: about["launches"][0].update(items=[1 << 31, 0, 0, 0], per=1),
    lambda about: about["shaders"][0].update(text=5),
    lambda about: about["shaders"][0].update(written=[True]),
    lambda about: about["shaders"][0].update(params=65),
    lambda about: about["buffers"][0].update(bytes=8),
    lambda about: about["buffers"][0].update(bytes=-4),
    lambda about: about["buffers"][0]["pieces"][0].update(weight="none"),
    lambda about: about["buffers"][0]["pieces"][0].update(weight={"toString": 1}),
    lambda about: about["buffers"][0]["pieces"][0].update(rows=10**6),
    lambda about: about["buffers"][0]["pieces"][0].update(first=1),
    lambda about: about["buffers"][0]["pieces"][0].update(stride=4),
    lambda about: about["buffers"][0]["pieces"][0].update(at=2),
    lambda about: about["buffers"][0]["pieces"][0].update(codes=[0, 2, 2, 1]),
    lambda about: about["inputs"][0].update(name="secrets"),
    lambda about: about["inputs"][0].update(at=[0, 0, 0, -64]),
    lambda about: about["inputs"][0].update(at=[0, 0, 0, 1 << 20]),
    lambda about: about["inputs"][0].update(dtype="f64"),
    lambda about: about.update(outputs=[]),
    lambda about: about.update(end="far"),
    lambda about: about["split"].update(block=0),
    lambda about: about["largest"].update(launches=[{}]),
]


def test_wrong_lists_are_refused(told, bundle: Path) -> None:
    good, lists = read(bundle, "gpu.json"), []
    for change in WRONG:
        lists.append(copy.deepcopy(good))
        change(lists[-1])
    answers = told([*lists, "{", "[]", "null", {**good, "weft_gpu": 2}])
    for index, answer in enumerate(answers[:-1]):
        assert answer.get("code") in ("format", "unsupported"), (index, answer)
        assert answer["message"].startswith("[gpu.json]")
    assert all(answer["code"] == "format" for answer in answers[: len(WRONG) + 1])
    assert answers[-1]["code"] == "unsupported"


def test_weights_that_are_wrong_are_refused(told, bundle: Path) -> None:
    about, weights = read(bundle, "gpu.json"), read(bundle, "manifest.json")["weights"]
    vector = next(piece for buffer in about["buffers"] for piece in buffer.get("pieces", []) if "rows" not in piece)
    index = next(index for index, entry in enumerate(weights) if entry["name"] == vector["weight"])
    for wrong in (None, {**weights[index], "bytes": 5}, {**weights[index], "file": "__proto__"}):
        (answer,) = told([about], weights=[*weights[:index], wrong, *weights[index + 1 :]])
        assert (answer.get("code"), answer.get("message", "")[:10]) == ("format", "[gpu.json]"), (wrong, answer)


def test_types_that_shaders_do_not_read_are_named(tmp_path: Path) -> None:
    from test_wasm_weights import write

    path = write(tmp_path / "m.gguf", "iq2_xs")
    done = export(path, tmp_path / "b.weft", compute="f32").path
    assert read(done, "manifest.json")["gpu"] is None
    assert "iq2_xs" in read(done, "manifest.json")["gpu_refused"]
    assert not (done / "gpu.json").exists()
    with pytest.raises(UnsupportedError, match="iq2_xs"):
        export(path, tmp_path / "c.weft", compute="f32", gpu=True)


def test_steps_of_a_host_that_fail_leave_nothing_behind(wasm: Path, node: str, st_bundle: Path, bundle: Path) -> None:
    manifest = read(bundle, "manifest.json")
    manifest["files"]["gpu.json"]["bytes"] = 1 << 52
    site = Site({"b": bundle})
    site.changed["/b/manifest.json"] = json.dumps(manifest).encode()
    command = [node, str(HERE / "steps.mjs"), str(RUNTIME), str(st_bundle), str(bundle), f"{site.url}/b/"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    site.close()
    assert done.returncode == 0, done.stderr
    wanted = {"nothing": "format", "few": "format", "room": "memory", "file": "memory", "lost": "lost"}
    assert json.loads(done.stdout) == {**wanted, "grown": [0, 0]}
