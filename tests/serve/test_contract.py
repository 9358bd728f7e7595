"""The server keeps to its own OpenAPI document, positive and negative, in a run short enough for every day."""

import pytest

pytest.importorskip("schemathesis")

import contract


def test_every_operation_answers_as_the_document_says(model_files):
    found = contract.run(model_files, 2, "fuzzing")
    assert found.returncode == 0 and " passed" in found.stdout, found.stdout[-3000:]
