"""Tiny models to measure, and a folder with a peer that is none."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))  # the runner of commands and the tiny chat model

FAKE = '''"""A peer that computes nothing: it answers at once, with what the test looks for."""
import os
import sys

NAME = "Fake"
PACKAGES = {"json": "json", %(missing)s}
SETTINGS = {"generate": ["default"], "embed": ["f32", "int8"]}
GPU = {"generate": ["f16 on CUDA"]}


class Peer:
    def load(self, task, model, threads, setting, context, files):
        if files == "broken":
            raise ValueError("no such export")
        print("noise that is no answer")
        self.threads = threads
        return {"about": f"{task} {setting} {os.environ['OMP_NUM_THREADS']}"}

    def decode(self, prompt, tokens):
        for _ in range(2000 * tokens):
            pass
        return list(range(tokens))

    def prefill(self, prompt):
        raise RuntimeError("prompts are too much")

    def die(self):
        print("last words", file=sys.stderr, flush=True)
        os._exit(3)
'''

LEARNER = '''"""weft itself under another name, in place of a peer that trains."""
import sys

sys.path.insert(0, %(root)r)
from weft.bench.itself import Peer as Weft

NAME = %(name)r
PACKAGES = {"numpy": "numpy"}
SETTINGS = {%(task)r: ["f32"]}


class Peer(Weft):
    def load(self, **given):
        return {**super().load(**given), "about": "not weft"}

    def step(self):
        (loss,) = super().step()
        return [loss * %(wrong)r]
'''


@pytest.fixture
def learners(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder of peers that train; the loss of the first is `wrong` times what it should be."""

    def make(wrong: float = 1.0) -> Path:
        folder = tmp_path / f"learners{wrong}"
        folder.mkdir()
        root = str(Path(__file__).resolve().parents[2])
        for name, task, by in (("Steps", "train", wrong), ("Memory", "train_memory", 1.0)):
            (folder / f"{name.lower()}.py").write_text(
                LEARNER % {"root": root, "name": name, "task": task, "wrong": by}
            )
        return folder

    return make


@pytest.fixture
def peers(tmp_path: Path) -> Path:
    """A folder of peers' scripts: one that works, and one whose package nobody has."""
    folder = tmp_path / "peers"
    folder.mkdir()
    (folder / "fake.py").write_text(FAKE % {"missing": ""})
    (folder / "lost.py").write_text(
        FAKE.replace('"Fake"', '"Lost"') % {"missing": '"no_such_module": "no-such-package"'}
    )
    (folder / "_shared.py").write_text("")
    return folder


@pytest.fixture(scope="session")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file with a tokenizer."""
    from tiny_chat import write_chat_model

    return write_chat_model(tmp_path_factory.mktemp("bench") / "tiny.gguf")


@pytest.fixture(scope="session")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers folder."""
    from tiny_st import write_st_folder

    return write_st_folder(tmp_path_factory.mktemp("bench") / "model")
