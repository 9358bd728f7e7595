"""An error is data: what it was made of can be read, changed, copied and pickled, and is rendered once."""

import pickle

import pytest

from weft.errors import DownloadError, FormatError, InputError, LeaseError, NotFoundError, TooLongError, naming


@pytest.mark.parametrize(
    "error, text",
    [
        (InputError("embed", "no texts"), "[embed] no texts"),
        (InputError("embed", "no texts", advice="give at least one"), "[embed] no texts; give at least one"),
        (InputError("load", "must be an int", field="context", given="a"), "[load] context must be an int: got 'a'"),
        (InputError("embed", "is empty", field="text", index=3), "[embed] text 3 is empty"),
        (InputError("embed", "must be a str", given=None), "[embed] must be a str: got None"),
        (NotFoundError("load", "no such model", given="x"), "[load] no such model: got 'x'"),
        (DownloadError("hub", "timed out"), "[hub] timed out"),
    ],
)
def test_an_error_renders_what_it_was_made_of(error, text):
    assert str(error) == text


def test_a_long_value_is_shown_shortened():
    assert len(str(InputError("x", "bad", given="a" * 1000))) < 120


def test_a_changed_copy_leaves_the_error_as_it_was():
    error = TooLongError("embed", "has 9 tokens", field="text", index=0, length=9, limit=5)
    moved = error.but(field="row", index=7)
    assert str(moved) == "[embed] row 7 has 9 tokens"
    assert str(error) == "[embed] text 0 has 9 tokens"
    assert (moved.length, moved.limit) == (9, 5)


@pytest.mark.parametrize(
    "error",
    [
        InputError("a", "b", given=None, advice="c", field="d", index=1),
        LeaseError("store", "held", until=3.5),
        DownloadError("hub", "timed out", given=3),
        NotFoundError("a", "b"),
    ],
)
def test_errors_survive_pickling(error):
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is type(error)
    assert str(copied) == str(error)
    assert vars(copied) == vars(error)


def test_errors_about_a_file_name_it():
    for where, want in (("config", "[c.json] bad"), ("rope", "[c.json] rope: bad"), ("other.json", "[other.json] bad")):
        with pytest.raises(FormatError) as caught, naming("c.json", "config"):
            raise FormatError(where, "bad")
        assert str(caught.value) == want


def test_errors_of_the_core_are_data_too():
    from weft._core import text

    with pytest.raises(FormatError) as caught:
        text.check_json(b'{"a": ', "some.json")
    assert (caught.value.where, caught.value.field) == ("some.json", None)
    assert caught.value.what.startswith("malformed JSON: ")
