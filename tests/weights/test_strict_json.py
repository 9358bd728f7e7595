"""JSON that two readers could read differently is refused, and the error says at which character."""

import pytest

from weft.weights import strict_json

ODD = {
    '{"a": NaN}': "NaN is not JSON at character 6",
    '{"NaN": "NaN", "b": [1, -Infinity]}': "-Infinity is not JSON at character 24",
    '["1e999", 1e999]': "a number out of range at character 10",
    "[1, -0]": "the number -0 at character 4",
    f"[{'9' * 21}]": "a number of 21 digits at character 1",
    '["\\u00e9", "\\ud83d\\ude00", "\\ud800"]': "a lone surrogate in the string at character 27",
    '{"\\ud800": 1}': "a lone surrogate in the string at character 1",
    "[" * 65 + "]" * 65: "nested deeper than 64 at character 64",
    '["[[[", ' + "[" * 64 + "]" * 65: "nested deeper than 64 at character 71",
    "[" * 100_000: "nested deeper than 64 at character 64",
    '{"a": "x': "Unterminated string starting at character 6",
    "[1] 2": "something follows the value at character 3",
}


def test_the_number_that_stands_for_no_limit_is_read() -> None:
    """Many tokenizer_config.json have it as their model_max_length."""
    assert strict_json.parse('{"model_max_length": 1000000000000000019884624838656}') == {"model_max_length": int(1e30)}


def test_infinity_is_a_number_only_where_the_reader_says_so() -> None:
    assert strict_json.parse("[0.0, Infinity]", infinity=True) == [0.0, float("inf")]
    for text, infinity in (("[Infinity]", False), ("[-Infinity]", True), ("[NaN]", True)):
        with pytest.raises(strict_json.JsonError, match="is not JSON at character 1"):
            strict_json.parse(text, infinity=infinity)


@pytest.mark.parametrize("text", ODD, ids=lambda text: text[:20])
def test_the_place_is_named(text: str) -> None:
    with pytest.raises(strict_json.JsonError) as error:
        strict_json.parse(text)
    assert str(error.value) == ODD[text]


def test_a_key_that_is_given_twice_is_named() -> None:
    with pytest.raises(strict_json.JsonError, match="the key 'b' is given twice"):
        strict_json.parse('{"a": {"b": 1, "b": 1}}')


def test_a_crowd_is_refused_before_it_is_parsed() -> None:
    strict_json.parse("[1, 2]", max_values=2)
    with pytest.raises(strict_json.CrowdError, match="about 3; the limit is 2"):
        strict_json.parse("[1, 2, this is no JSON", max_values=2)


def test_what_is_json_is_read() -> None:
    assert strict_json.parse(' {"a": [1, 0.5, "\\ud83d\\ude00", null, true]} ') == {
        "a": [1, 0.5, "\U0001f600", None, True]
    }
