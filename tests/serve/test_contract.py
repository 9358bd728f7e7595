"""The server keeps to its own OpenAPI document, positive and negative, in a run short enough for every day."""

import pytest
from soaking import times

pytest.importorskip("schemathesis")

import contract


@pytest.mark.soak
def test_every_operation_answers_as_the_document_says(model_files):
    found = contract.run(model_files, times(50, 1), "fuzzing")
    assert found.returncode == 0 and " passed" in found.stdout, found.stdout[-3000:]
