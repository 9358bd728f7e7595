"""What is said of models that see before they are loaded: their towers are found and counted."""

import json

import pytest
import tiny_eyes
import tiny_towers
from click.testing import CliRunner

from weft.cli.app import app
from weft.pictures import PictureLimits
from weft.runtime import Decoder, open_checkpoint
from weft.runtime.projector import with_projector
from weft.serve.models.outline import outline_of
from weft.serve.settings import ModelSpec
from weft.weights import open_weights


def run(*words):
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    return found.stdout


def counted(model):
    return json.loads(run("doctor", str(model), "--json"))["model"]["bytes"]


@pytest.mark.parametrize("kind", tiny_towers.CONFIGS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_both_towers_of_an_embedder_are_counted_once(kind, wrapped, tmp_path):
    folder = tmp_path / "made" / "0_CLIPModel"
    tiny_towers.write_folder(folder, kind, tokenizer=True)
    whole = open_weights(folder).nbytes
    module = {"idx": 0, "name": "0", "path": folder.name, "type": "sentence_transformers.models.CLIPModel"}
    (folder.parent / "modules.json").write_text(json.dumps([module]))
    model = folder.parent if wrapped else folder
    for found in (counted(model), outline_of(ModelSpec("it", str(model))).bytes):
        assert found["weights"] == whole and found["work"] > PictureLimits().work_bytes
    assert "pictures     are read, by its own tower" in run("show", str(model))
    assert json.loads(run("inspect", str(model), "--json"))


def test_the_mmproj_file_beside_a_model_is_counted(tmp_path):
    text, tower = tiny_eyes.write_pair(tmp_path)
    both = open_weights(text).nbytes + open_weights(tower).nbytes
    for found in (counted(text), outline_of(ModelSpec("it", str(text))).bytes):
        assert found["weights"] == both and found["work"] > PictureLimits().work_bytes
    assert Decoder(with_projector(open_checkpoint(text), None), bind=False).memory_plan()["weights"] == both
    assert f"pictures     are read, by {tower.name}" in run("show", str(text))
    tower.unlink()
    assert counted(text)["weights"] == open_weights(text).nbytes and counted(text)["work"] < PictureLimits().work_bytes
    assert "pictures" not in run("show", str(text))
