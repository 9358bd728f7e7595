"""`weft generate` and `weft chat` show pictures to a model that sees."""

import json

import pytest
import tiny_eyes
from click.testing import CliRunner
from PIL import Image

import weft
from weft.cli.app import app
from weft.cli.conversation import Conversation

GREEDY = ["--max-tokens", "8", "--temperature", "0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tiny_eyes.write_folder(tmp_path_factory.mktemp("eyes"))
    for i, pixels in enumerate(tiny_eyes.pictures()):
        Image.fromarray(pixels).save(path / f"{i}.png")
    return path


def run(*arguments, **options):
    return CliRunner().invoke(app, [str(one) for one in arguments], **options)


def test_generate_reads_pictures_raw_and_as_a_message(folder):
    model = weft.load(str(folder))
    found = run("generate", "What?", "--image", folder / "0.png", "-m", folder, "--json", *GREEDY)
    assert found.exit_code == 0, found.output
    wanted = model.generate("What?", images=[folder / "0.png"], max_tokens=8)
    assert json.loads(found.stdout)["tokens"] == list(wanted.tokens)
    found = run(
        "generate", "--chat", "And?", "--image", folder / "0.png", "--image", folder / "1.png", "-m", folder, "--json",
        *GREEDY,
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    content = [*({"type": "image", "image": folder / f"{i}.png"} for i in range(2)), tiny_eyes.text("And?")]
    ids = model.chat_ids([{"role": "user", "content": content}])
    assert json.loads(found.stdout)["tokens"] == list(model.generate(ids, max_tokens=8).tokens)


def test_generate_refuses_what_cannot_be(folder, tmp_path):
    found = run("generate", "a", "--image", folder / "0.png", "--suffix", "b", "-m", folder)
    assert found.exit_code == 2 and "--image works with neither" in found.output
    (tmp_path / "no.png").write_bytes(b"nothing")
    found = run("generate", "a", "--image", tmp_path / "no.png", "-m", folder)
    assert found.exit_code != 0 and "is not a PNG" in found.output + str(found.exception)


def test_a_chat_keeps_its_pictures(folder, tmp_path):
    kept = tmp_path / "kept.json"
    typed = f"What?\n/image {folder / '1.png'}\nAnd this?\n/image nothing.png\n/stats\n"
    found = run("chat", folder, "--image", folder / "0.png", "--resume", kept, *GREEDY, input=typed)
    assert found.exit_code == 0, found.output
    assert "goes with the next message" in found.output and "nothing.png cannot be read" in found.output
    turns = Conversation.load(kept).turns
    parts = [[part["type"] for part in turn["content"]] for turn in turns if turn["role"] == "user"]
    assert parts == [["image", "text"], ["image", "text"]]
    found = run("chat", folder, "--resume", kept, *GREEDY, input="So?\n")
    assert found.exit_code == 0, found.output
    assert len(Conversation.load(kept).turns) == 6
