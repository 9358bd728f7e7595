"""Formulas, entities, addresses, PDF files, groups of texts and conversations from elsewhere are read as meant."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PDF = Path(__file__).resolve().parents[2] / "golden" / "pdf"
TEXTS = json.loads((PDF / "texts.json").read_text(encoding="utf-8"))
RENDER = """async (text) => {
  const { markdownView } = await import('/page/text/markdown.js');
  const element = document.createElement('div');
  markdownView(element).update(text);
  return element.innerHTML;
}"""
READ_PDF = """async (base64) => {
  const { pdfText } = await import('/page/pdf/text.js');
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  try {
    return await pdfText(bytes);
  } catch (error) {
    return error.message;
  }
}"""
# Formulas as the tags and texts of their MathML.
FORMULAS = {
    r"\(x^2\)": "<msup><mi>x</mi><mn>2</mn></msup>",
    "$a_1$": "<msub><mi>a</mi><mn>1</mn></msub>",
    r"\(\frac{1}{n}\)": "<mfrac><mn>1</mn><mi>n</mi></mfrac>",
    r"\(\sqrt[3]{x}\)": "<mroot><mi>x</mi><mn>3</mn></mroot>",
    r"$$\sum_{i=1}^n i$$": (
        "<munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow><mi>n</mi></munderover><mi>i</mi>"
    ),
    r"\(f'(x)\)": "<msup><mi>f</mi><mo>′</mo></msup><mo>(</mo><mi>x</mi><mo>)</mo>",
    r"\(\alpha \le \mathbb{R}\)": "<mi>α</mi><mo>≤</mo><mi>ℝ</mi>",
    r"\(\left[ x \right]\)": "<mrow><mo>[</mo><mi>x</mi><mo>]</mo></mrow>",
    r"\(\text{if } x\)": "<mtext>if\u00a0</mtext><mi>x</mi>",
    r"\[\begin{pmatrix} a & b \\ c & d \end{pmatrix}\]": (
        "<mrow><mo>(</mo><mtable><mtr><mtd><mi>a</mi></mtd><mtd><mi>b</mi></mtd></mtr>"
        "<mtr><mtd><mi>c</mi></mtd><mtd><mi>d</mi></mtd></mtr></mtable><mo>)</mo></mrow>"
    ),
    "$$\n\\begin{aligned} a &= b \\\\ &= c \\end{aligned}\n$$": (
        "<mtable><mtr><mtd><mi>a</mi></mtd><mtd><mo>=</mo><mi>b</mi></mtd></mtr>"
        "<mtr><mtd></mtd><mtd><mo>=</mo><mi>c</mi></mtd></mtr></mtable>"
    ),
}
NOT_FORMULAS = [
    "It costs $5 and $10.",
    "Between $5-$10 a piece",
    "`$x$` in code",
    "$HOME and $PATH",
    r"a \( that nothing closes",
    r"\$x\$",
]
ADDRESSES = {
    "see https://en.wikipedia.org/wiki/Weft_(weaving) there": "https://en.wikipedia.org/wiki/Weft_(weaving)",
    "(see https://example.org/a)": "https://example.org/a",
    "[a](https://en.wikipedia.org/wiki/Weft_(weaving))": "https://en.wikipedia.org/wiki/Weft_(weaving)",
    "[a](<https://example.org/a(b>)": "https://example.org/a(b",
    "[a](https://example.org/?a=1&amp;b=2)": "https://example.org/?a=1&b=2",
    '[a](https://example.org/x "a title")': "https://example.org/x",
}


@pytest.fixture(scope="module")
def page(chromium, server) -> Any:
    """One page for all of this file; nothing here changes it."""
    context = chromium.new_context()
    opened = context.new_page()
    opened.goto(f"{server.url}/")
    yield opened
    context.close()


@pytest.mark.parametrize("source", FORMULAS)
def test_a_formula_becomes_mathml(page, source):
    made = page.evaluate(RENDER, source)
    inside = re.search(r"<math[^>]*><mrow>(.*)</mrow></math>", made)
    assert inside, made
    bare = re.sub(r"<(\w+) [^>]*>", r"<\1>", inside.group(1)).replace("&nbsp;", "\u00a0")
    assert bare == FORMULAS[source]


def test_a_formula_in_a_line_and_one_of_its_own(page):
    assert 'display="inline"' in page.evaluate(RENDER, r"so \(x\) is")
    assert page.evaluate(RENDER, "so\n\\[\nx\n\\]\nis").count('<div class="formula"') == 1


@pytest.mark.parametrize("source", [r"\(\frobnicate{x}\)", r"\(x_{1\)", r"$$\begin{tikzpicture} \end{tikzpicture}$$"])
def test_a_formula_that_is_not_understood_is_shown_as_its_source(page, source):
    made = page.evaluate(RENDER, source)
    assert "<math" not in made and '<code class="math-source"' in made
    assert re.sub(r"^[\\$(\[]+|[\\$)\]]+$", "", source).strip()[:10] in made


@pytest.mark.parametrize("source", NOT_FORMULAS)
def test_prices_and_code_are_not_formulas(page, source):
    assert "<math" not in page.evaluate(RENDER, source)


def test_entities_become_their_characters_but_not_in_code(page):
    made = page.evaluate(RENDER, "a &lt;b&gt; &amp; &#39;c&#x27; &hearts; &unknown; `&amp;`")
    assert made == "<p>a &lt;b&gt; &amp; 'c' &amp;hearts; &amp;unknown; <code>&amp;amp;</code></p>"
    assert page.evaluate(RENDER, "&lt;img src=x onerror=alert(1)&gt;") == "<p>&lt;img src=x onerror=alert(1)&gt;</p>"


@pytest.mark.parametrize("source", ADDRESSES)
def test_an_address_keeps_its_own_parentheses(page, source):
    (found,) = re.findall(r'href="([^"]*)"', page.evaluate(RENDER, source))
    assert found.replace("&amp;", "&") == ADDRESSES[source]


@pytest.mark.parametrize("name", TEXTS)
def test_the_text_of_a_pdf_is_what_another_reader_finds(page, name):
    """pypdf read the same files: standard fonts, a part of a TrueType font with ToUnicode, object streams."""
    read = page.evaluate(READ_PDF, base64.b64encode((PDF / f"{name}.pdf").read_bytes()).decode())
    assert read["empty"] == 0
    assert [text.split() for text in read["pages"]] == [text.split() for text in TEXTS[name]]


def test_a_pdf_that_chromium_prints_is_read(chromium, page):
    """Type 0 fonts with ToUnicode maps, in lines and paragraphs, as a browser writes them."""
    context = chromium.new_context()
    other = context.new_page()
    other.set_content("<h1>Waffles &amp; office</h1><p>First line<br>second line</p><p>Łódź, ‘quotes’, ½ — x</p>")
    printed = other.pdf()
    context.close()
    read = page.evaluate(READ_PDF, base64.b64encode(printed).decode())
    lines = ["Waffles & office", "First line", "second line", "Łódź, ‘quotes’, ½ — x"]
    assert [line for line in read["pages"][0].splitlines() if line] == lines
    assert "second line\n\nŁódź" in read["pages"][0]


@pytest.mark.parametrize(
    "name, words",
    [
        ("encrypted", "the PDF is encrypted; open it with its password"),
        ("scanned", "has no text: its page is a picture"),
    ],
)
def test_a_pdf_that_cannot_be_read_says_why(page, name, words):
    assert words in page.evaluate(READ_PDF, base64.b64encode((PDF / f"{name}.pdf").read_bytes()).decode())


def test_damaged_pdfs_end_with_a_message(page):
    whole = (PDF / "object_streams.pdf").read_bytes()
    for content in (b"", b"%PDF-1.7", whole[:200], whole.replace(b"obj", b"oxj")):
        said = page.evaluate(READ_PDF, base64.b64encode(content).decode())
        assert isinstance(said, str) and said and "undefined" not in said
    cut = page.evaluate(READ_PDF, base64.b64encode(whole[:700] + b"\0" * 300).decode())
    assert cut == {"pages": ["Weaving on a loom", ""], "empty": 1}  # what can be read is read, and the rest counted
    # A table of offsets that is wrong does no harm: the objects are found without it.
    shifted = (PDF / "standard.pdf").read_bytes().replace(b"%PDF-1.4", b"%PDF-1.4\n% and a comment that moves all", 1)
    assert page.evaluate(READ_PDF, base64.b64encode(shifted).decode())["pages"][0].startswith("Weaving on a loom")


def test_texts_that_are_alike_form_groups(page):
    rng = np.random.default_rng(5)
    centres = np.eye(8)[:3]
    rows = np.repeat(centres, [4, 3, 5], axis=0) + 0.15 * rng.standard_normal((12, 8))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    find = "async (matrix) => (await import('/page/embed/clusters.js')).clusters(matrix)"
    assert page.evaluate(find, (rows @ rows.T).tolist()) == [0] * 4 + [1] * 3 + [2] * 5
    same = np.ones((6, 6))
    assert page.evaluate(find, same.tolist()) == [0] * 6  # texts that are all alike are one group
    assert page.evaluate(find, np.eye(2).tolist()) == [0, 0]


CHATGPT = [
    {
        "title": "Looms",
        "update_time": 1700000000.5,
        "current_node": "c",
        "mapping": {
            "a": {"message": None, "parent": None},
            "b": {"message": {"author": {"role": "user"}, "content": {"parts": ["What is a loom?"]}}, "parent": "a"},
            "x": {"message": {"author": {"role": "assistant"}, "content": {"parts": ["No."]}}, "parent": "b"},
            "c": {"message": {"author": {"role": "assistant"}, "content": {"parts": ["A frame."]}}, "parent": "b"},
        },
    }
]
WEBUI = [
    {
        "updated_at": 1700000000,
        "chat": {
            "title": "Warp",
            "messages": [{"role": "user", "content": "Warp?"}, {"role": "assistant", "content": "Threads."}],
        },
    }
]


@pytest.mark.parametrize(
    "raw, title, said",
    [
        (CHATGPT, "Looms", ["What is a loom?", "A frame."]),
        (WEBUI, "Warp", ["Warp?", "Threads."]),
        ([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "Hi", ["Hi"]),
        ([{"id": "12345678", "messages": [{"role": "user", "content": "One"}]}, {"messages": 5}], "One", ["One"]),
    ],
)
def test_conversations_of_other_programs_are_read(page, raw, title, said):
    read = """async (text) => {
      const { readFileText } = await import('/page/chat/transfer.js');
      const { contentOf, titleOf } = await import('/page/chat/conversation.js');
      return readFileText(text).map((one) => [titleOf(one), one.messages.map(contentOf), one.updated]);
    }"""
    ((found, messages, updated),) = page.evaluate(read, json.dumps(raw))
    assert (found, messages) == (title, said)
    if title in ("Looms", "Warp"):
        assert abs(updated - 1700000000000) <= 500


def test_passages_are_paragraphs_of_a_fitting_length(page):
    cut = "async (text) => (await import('/page/files/passages.js')).passages(text)"
    text = "Short one.\n\nAnother short one.\n\n" + "A long sentence of words. " * 60 + "\n\n" + "x" * 2000
    made = page.evaluate(cut, text)
    assert made[0].startswith("Short one. Another short one. A long")
    assert all(len(each) <= 700 and "\n" not in each for each in made)
    assert "".join(made).replace(" ", "") == re.sub(r"\s", "", text)
