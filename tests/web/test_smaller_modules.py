"""A module for given bundles has the kernels, types and states that they need; others are refused by name."""

import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from static_site import ROOT
from test_wasm_weights import write

from weft.export import export


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("weft_tool_build_wasm", ROOT / "tools" / "build_wasm.py")
    assert spec and spec.loader
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_module_has_the_kernels_and_types_of_its_bundles(build, st_bundle: Path, tmp_path: Path) -> None:
    chat = export(write(tmp_path / "m.gguf", "q4_1"), tmp_path / "b.weft", compute="int8").path
    alone, both = build.parts_for([st_bundle], tmp_path), build.parts_for([st_bundle, chat], tmp_path)
    assert list(alone.types) == []
    assert "lora" not in both.kernels
    adapted = export(str(tmp_path / "m.gguf"), tmp_path / "a.weft", compute="int8", adapters=True).path
    assert {"lora", "lora_embedding"} <= set(build.parts_for([adapted], tmp_path).kernels)
    assert "q4_1" in both.types and set(both.types) < set(build.TYPES)
    assert {"attention", "matmul"} <= set(alone.kernels) < set(both.kernels) < set(build.KERNELS)
    assert "matmul_q" in both.kernels and "reshape" not in both.kernels
    build.write_fewer(tmp_path, both)
    formats = (tmp_path / "pack" / "formats.h").read_text()
    assert "{DType::q4_1," in formats and "{DType::q6_k," not in formats


def test_what_no_module_has_is_refused_by_name(build, tmp_path: Path) -> None:
    other = export(write(tmp_path / "m.gguf", "q3_k"), tmp_path / "b.weft", compute="f32").path
    with pytest.raises(SystemExit, match="q3_k"):
        build.parts_for([other], tmp_path)


@pytest.mark.parametrize("kind", ["i8r", "i4r"])
def test_states_that_no_module_has_are_refused_by_the_module(in_node, tmp_path: Path, kind: str) -> None:
    bundle = export(write(tmp_path / "m.gguf", "q4_1"), tmp_path / "b.weft", compute="int8").path
    manifest, program = (
        json.loads((bundle / "manifest.json").read_text()),
        json.loads((bundle / "program.json").read_text()),
    )
    states = [value for value in program["values"] if value["kind"] == "kv"]
    assert states
    for value in states:
        value["dtype"] = kind
    changed = json.dumps(program).encode()
    (bundle / "program.json").write_bytes(changed)
    manifest["files"]["program.json"] = {"bytes": len(changed), "sha256": hashlib.sha256(changed).hexdigest()}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    error = in_node(bundle, prompts=["a"])["error"]
    assert error["code"] == "unsupported"
    assert f"keys and values in {kind}" in error["message"]
