"""The server keeps to its own OpenAPI document, positive and negative, in a run short enough for every day."""

import pytest

pytest.importorskip("schemathesis")

import contract

from weft.serve.app import all_routes


def test_every_operation_answers_as_the_document_says(model_files):
    found = contract.run(model_files, 1, "fuzzing")
    assert found.returncode == 0 and f"{len(all_routes())} passed" in found.stdout, found.stdout[-3000:]
