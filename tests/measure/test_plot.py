"""Size against loss, in a terminal and as a picture."""

import xml.etree.ElementTree as tree

import pytest

from weft.errors import InputError
from weft.measure.plot import Point, best, points_of, svg, text

LINES = [
    {"model": "m/f16.gguf", "bytes": 200_000_000, "perplexity": 10.0},
    {"model": "m/q8.gguf", "bytes": 110_000_000, "perplexity": 10.1},
    {"model": "m/bad<q4>.gguf", "bytes": 120_000_000, "perplexity": 12.0},
    {"model": "m/q2.gguf", "bytes": 50_000_000, "perplexity": 14.0},
]


def test_points_are_read_from_lines_of_all_commands() -> None:
    measure, points = points_of(LINES)
    assert measure == "perplexity" and points[0] == Point("f16.gguf", 200.0, 10.0)
    measure, points = points_of(['{"a": "x", "b": "y/q4.gguf", "bytes_a": 9, "bytes_b": 5e6, "mean": 0.25}', ""])
    assert (measure, points) == ("divergence", [Point("q4.gguf", 5.0, 0.25)])
    assert points_of([{"model": "e", "bytes": 1e6, "spearman": 0.8, "lost": 0.001}])[0] == "1 - cosine"
    assert [point.name for point in best(points_of(LINES)[1])] == ["q2.gguf", "q8.gguf", "f16.gguf"]


def test_the_terminal_shows_small_to_the_left_and_good_below() -> None:
    lines = text(*points_of(LINES), width=40, height=9)
    rows = lines[1:10]
    where = {name: next((y, row.index(name)) for y, row in enumerate(rows) if name in row[11:]) for name in "ACD"}
    assert where["D"][1] < where["C"][1] < where["A"][1] and where["D"][0] < where["C"][0] < where["A"][0]
    assert lines[-1] == "D  q2.gguf  50.0 MB, perplexity 14" and len(lines) == 1 + 9 + 2 + 4


def test_the_picture_is_valid_and_has_a_dot_for_each() -> None:
    root = tree.fromstring(svg(*points_of(LINES)))
    dots = [one for one in root.iter() if one.tag.endswith("circle")]
    assert len(dots) == 4 and float(dots[3].attrib["cx"]) < float(dots[0].attrib["cx"])
    assert float(dots[3].attrib["cy"]) < float(dots[0].attrib["cy"])  # what loses more is higher
    assert tree.fromstring(svg(*points_of(LINES[:1])))  # one alone


@pytest.mark.parametrize(
    "lines, said",
    [
        ([], "no lines"),
        (["{"], "line 1 is not JSON"),
        (["[]"], "line 1 is not an object"),
        ([{"model": "x", "bytes": 5}], "line 1 needs a size"),
        ([LINES[0], {"b": "y", "bytes_b": 5, "mean": 0.2}], "different things: mean, perplexity"),
    ],
)
def test_lines_that_cannot_be_drawn(lines: list[object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        points_of(lines)  # type: ignore[arg-type]
