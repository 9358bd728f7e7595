"""The commands on real models, by their catalogue names."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT, Run, environment

pytestmark = pytest.mark.weights


@pytest.mark.usefixtures("minilm")
def test_similar_sentences_are_similar(run: Run) -> None:
    result = run("embed", "a cat on a sofa", "a kitten on a couch", "the stock market fell")
    rows = [line.split() for line in result.stdout.splitlines()[-3:]]
    scores = [[float(value) for value in row[-3:]] for row in rows]
    assert scores[0][1] > 0.7 > 0.3 > scores[0][2]


@pytest.mark.usefixtures("smollm2")
def test_a_prompt_is_continued_with_sense(run: Run) -> None:
    assert "Paris" in run("generate", "The capital of France is", "--max-tokens", "8").stdout


@pytest.mark.usefixtures("smollm2")
def test_a_chat_answers(run: Run) -> None:
    options = ["--temperature", "0", "--max-tokens", "40", "--compute", "f32"]
    result = run("chat", *options, input="What is the capital of France?\n/stats\n")
    assert "Paris" in result.stdout and "of 8192 tokens, 2 messages" in result.stderr


def test_list_and_inspect_know_the_file(run: Run, smollm2: Path) -> None:
    assert str(smollm2) in run("list").stdout
    report = json.loads(run("inspect", "smollm2-135m-instruct", "--json").stdout)
    assert report["tensor_count"] == 272 and [t["dtype"] for t in report["types"]] == ["q4_1", "q8_0", "f32"]


@pytest.mark.usefixtures("minilm", "smollm2")
def test_the_demo_runs() -> None:
    demo = ROOT / "examples" / "demo.py"
    done = subprocess.run([sys.executable, str(demo)], env=environment(), capture_output=True, text=True, check=True)
    assert "384 dimensions" in done.stdout and "tokens/s" in done.stdout
    assert len(demo.read_text(encoding="utf-8").splitlines()) <= 40
