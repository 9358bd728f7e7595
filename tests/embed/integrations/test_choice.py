"""A model or an embedder: what was given instead is named."""

import pytest

from weft.errors import InputError
from weft.integrations import check_choice


@pytest.mark.parametrize(
    ("model", "options", "got"),
    [
        (None, {}, "neither"),
        (None, {"model_name": "minilm"}, "model_name"),
        ("minilm", {"threads": 1}, "model, embedder"),
    ],
)
def test_what_is_no_choice_is_told_with_what_was_given(model: str | None, options: dict, got: str) -> None:
    embedder = None if model is None else object()
    with pytest.raises(InputError, match=f"or an embedder alone: got {got}"):
        check_choice(model, embedder, options)  # type: ignore[arg-type]
