"""The report is one page that needs nothing else; the curve fits a terminal."""

import re
from xml.etree import ElementTree

from weft import train
from weft.train.report import curve


def test_the_page_stands_alone_and_shows_the_run(chatty, tmp_path):
    rows = [{"prompt": f"say <b>{i}</b> &", "completion": f"it is {i}"} for i in range(12)]
    training = train.lora(chatty, rows, output=tmp_path / "a", valid=0.2, rate=0.01, batch_tokens=100)
    steps = list(training)
    page = (tmp_path / "a" / "report.html").read_text()
    assert not re.search(r"""(?:src|href)\s*=|url\(|@import|<script""", page)  # no other file, no network
    body = re.sub(r"<!doctype html>|<meta[^>]*>", "", page)
    ElementTree.fromstring(body)  # every tag is closed
    for what in ("say &lt;b&gt;", "<mark>it is ", f"{training.run.best[0].valid:.4f}", "learnt tokens", "batch_tokens"):
        assert what in page
    picture = ElementTree.fromstring((tmp_path / "a" / "loss.svg").read_text())
    lines = picture.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(lines[0].attrib["points"].split()) == len(steps)
    assert len(picture.findall(".//{http://www.w3.org/2000/svg}circle")) == sum(s.valid is not None for s in steps)


def test_a_run_of_one_step_has_a_report(chatty, tmp_path):
    list(train.lora(chatty, [{"text": "abc"}], output=tmp_path / "a"))
    assert "<circle" in (tmp_path / "a" / "loss.svg").read_text()


def test_ticks_are_round_numbers_inside():
    assert curve.ticks(0.0, 1.0) == [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]
    assert curve.ticks(1.0, 79.0, 8) == [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0]
    assert curve.ticks(2.0, 2.0) == [2.0]


def test_the_curve_of_a_terminal_falls_with_the_loss():
    lines = curve.text([(float(n), 1.0 / n) for n in range(1, 50)], width=20, height=4)
    assert len(lines) == 4 and {len(line) for line in lines} == {30}
    assert lines[0].startswith("   1.0000 ") and lines[0][10] != "\u2800" and lines[-1][-1] != "\u2800"
    assert curve.text([(1.0, 2.0), (2.0, 2.0)])[0][10] != "\u2800"
