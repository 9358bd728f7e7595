"""What a model writes becomes nodes and nothing else; streams, vectors and conversations are read as they are meant."""

import json
from typing import Any

import numpy as np
import pytest

RENDER = """async (text) => {
  const { markdownView } = await import('/page/text/markdown.js');
  const element = document.createElement('div');
  markdownView(element).update(text);
  for (const extra of element.querySelectorAll('.code-head')) extra.remove();
  return element.innerHTML;
}"""
CASES = {
    "a **b** *c* ***d*** ~~e~~": "<p>a <strong>b</strong> <em>c</em> <strong><em>d</em></strong> <del>e</del></p>",
    "snake_case_name and _this_": "<p>snake_case_name and <em>this</em></p>",
    "2 * 3 * 4 ** 5": "<p>2 * 3 * 4 ** 5</p>",
    "**bold with `code*` inside**": "<p><strong>bold with <code>code*</code> inside</strong></p>",
    "`` a ` b ``": "<p><code>a ` b</code></p>",
    "\\*not\\* emphasis": "<p>*not* emphasis</p>",
    "one\ntwo": "<p>one\ntwo</p>",
    "one  \ntwo": "<p>one<br>two</p>",
    "# A\n### B": '<h3 data-level="1">A</h3><h5 data-level="3">B</h5>',
    "---": "<hr>",
    "> a\n> b": "<blockquote><p>a\nb</p></blockquote>",
    "- a\n- b\n  - c": "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul>",
    "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "1. a\n  - b\n2. c": "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>",
    "- a\n\n- b": "<ul><li><p>a</p></li><li><p>b</p></li></ul>",
    "text\n- a": "<p>text</p><ul><li>a</li></ul>",
    "In 1998.\n1999. Then": "<p>In 1998.\n1999. Then</p>",
    "```py\nx = 1\n```\nafter": (
        '<figure class="code"><pre tabindex="0"><code>x = <span class="code-number">1</span></code></pre></figure>'
        "<p>after</p>"
    ),
    "~~~\n```\n~~~": '<figure class="code"><pre tabindex="0"><code>```</code></pre></figure>',
    "<b>x</b> &amp; <script>": "<p>&lt;b&gt;x&lt;/b&gt; &amp; &lt;script&gt;</p>",
    "a<br>b": "<p>a<br>b</p>",
}
LINKS = {
    "[a](https://example.org/x)": "https://example.org/x",
    "see https://example.org/a_b.": "https://example.org/a_b",
    "<mailto:a@example.org>": "mailto:a@example.org",
    "![picture](https://example.org/p.png)": "https://example.org/p.png",
}
HOSTILE = [
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1))",
    "[a](data:text/html,<script>alert(1)</script>)",
    "[a](vbscript:x)",
    "[a]( javascript:alert(1))",
    "[a](//example.org)",
    "![x](x onerror=alert(1))",
    "<img src=x onerror=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    "<a href='javascript:alert(1)'>x</a>",
    "```<script>\n<script>alert(1)</script>\n```",
    "| <script> | b |\n|---|---|\n| <img src=x onerror=alert(1)> | [x](javascript:1) |",
    "<iframe src=javascript:alert(1)>",
    '[x](https://example.org/"onmouseover="alert(1))',
]
SLOW = {
    "brackets": "[" * 60_000,
    "pairs of brackets": "[a](" * 15_000,
    "stars": "*a " * 30_000,
    "runs of stars": "*" * 60_000,
    "ticks of every length": " ".join("`" * n for n in range(1, 350)),
    "quotes": ">" * 60_000,
    "nested lists": "\n".join("  " * n + "- a" for n in range(400)),
    "bars": "|" * 60_000,
    "table": "|a" * 20_000 + "\n" + "|-" * 20_000,
    "addresses": "https://" * 8_000,
    "angles": "<https:" * 9_000,
    "blank items": "- \n" * 20_000,
    "words": "word " * 12_000,
}


@pytest.fixture(scope="module")
def page(chromium, server) -> Any:
    """One page for all of this file; nothing here changes it."""
    context = chromium.new_context()
    opened = context.new_page()
    opened.goto(f"{server.url}/")
    yield opened
    context.close()


@pytest.mark.parametrize("source", CASES)
def test_markdown_becomes_its_elements(page, source):
    assert page.evaluate(RENDER, source) == CASES[source]


def test_a_table_keeps_its_columns_and_their_sides(page):
    made = page.evaluate(RENDER, "| a | b | c |\n|:--|:-:|--:|\n| 1 | x\\|y |\n| 2 | 3 | 4 | 5 |")
    rows = made.split("<tr>")[1:]
    assert [row.count("<th") + row.count("<td") for row in rows] == [3, 3, 3]
    assert "x|y" in made and 'class="to-right"' in made and 'class="to-center"' in made


@pytest.mark.parametrize("source", LINKS)
def test_a_link_opens_elsewhere_and_tells_nothing(page, source):
    made = page.evaluate(RENDER, source)
    assert f'href="{LINKS[source]}" target="_blank" rel="noopener noreferrer nofollow"' in made
    assert "<img" not in made


@pytest.mark.parametrize("source", HOSTILE)
def test_nothing_that_a_model_writes_can_run(page, source):
    found = page.evaluate(
        """async (text) => {
          const { markdownView } = await import('/page/text/markdown.js');
          const element = document.createElement('div');
          markdownView(element).update(text);
          const nodes = [...element.querySelectorAll('*')];
          const bad = /script|img|iframe|object|embed|style|base/;
          const tags = nodes.map((node) => node.localName).filter((tag) => bad.test(tag));
          const handlers = nodes.flatMap((node) => [...node.attributes]).filter(({ name }) => name.startsWith('on'));
          const links = nodes.filter((node) => node.localName === 'a').map((node) => new URL(node.href).protocol);
          return [tags, handlers.length, links];
        }""",
        source,
    )
    assert found[:2] == [[], 0]
    assert set(found[2]) <= {"https:"}


@pytest.mark.parametrize("name", SLOW)
def test_no_text_takes_long(page, name):
    """A model may write anything. Each of these takes a fraction of a second; in quadratic time it would be minutes."""
    timed = """async (text) => {
      const { markdownView } = await import('/page/text/markdown.js');
      const start = performance.now();
      markdownView(document.createElement('div')).update(text);
      return performance.now() - start;
    }"""
    assert page.evaluate(timed, SLOW[name]) < 3000


def test_half_a_reply_shows_half_and_keeps_what_was_there(page):
    """A growing text leaves the nodes of finished blocks alone."""
    kept = page.evaluate("""async () => {
      const { markdownView } = await import('/page/text/markdown.js');
      const element = document.createElement('div');
      const view = markdownView(element);
      view.update('first\\n\\n```js\\nlet a');
      const [first, code] = element.children;
      view.update('first\\n\\n```js\\nlet a = 1;\\n```\\n\\nlast');
      return [element.children[0] === first, element.children[1] !== code, element.children.length];
    }""")
    assert kept == [True, True, 3]


EVENTS = (
    'data: {"a": "é€🙂"}\r\n\r\n: comment\n\nevent: x\ndata: one\ndata: two\n\ndata:tight\r\rdata: [DONE]\n\ndata: cut'
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_may_be_cut_anywhere(page, size):
    read = """async ([bytes, size]) => {
      const { readEvents } = await import('/page/api/events.js');
      const stream = new ReadableStream({ start(control) {
        for (let i = 0; i < bytes.length; i += size) control.enqueue(Uint8Array.from(bytes.slice(i, i + size)));
        control.close();
      } });
      const found = [];
      for await (const { data } of readEvents(stream)) found.push(data);
      return found;
    }"""
    assert page.evaluate(read, [list(EVENTS.encode()), size]) == ['{"a": "é€🙂"}', "one\ntwo", "tight", "[DONE]"]


@pytest.mark.parametrize("shape", [(2, 3), (7, 2), (12, 48), (40, 8)])
def test_the_map_is_the_plane_of_greatest_variance(page, shape):
    rows = np.random.default_rng(shape[0]).standard_normal(shape) * np.linspace(3, 0.5, shape[1])
    points, share = page.evaluate(
        """async (rows) => {
          const { principalPlane } = await import('/page/embed/maths.js');
          const plane = principalPlane(rows.map((row) => Float64Array.from(row)));
          return [plane.points, plane.share];
        }""",
        rows.tolist(),
    )
    left, values, _ = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    expected = left[:, :2] * values[:2]
    np.testing.assert_allclose(np.abs(points), np.abs(expected), atol=1e-3 * values[0])
    np.testing.assert_allclose(share, (values[:2] ** 2).sum() / (values**2).sum(), rtol=1e-3)


def test_a_conversation_is_read_from_anything(page):
    """What does not fit is dropped; what fits stays."""
    read = """async (raw) => {
      const { readConversation } = await import('/page/chat/conversation.js');
      return readConversation(JSON.parse(raw));
    }"""
    for raw in ("null", "5", '"x"', "[]", "{}", '{"messages": {}}'):
        assert page.evaluate(read, raw) is None
    odd = {
        "id": "../../x",
        "title": ["no"],
        "settings": {"temperature": "hot", "top_p": 0.5, "json": 1, "unknown": True},
        "messages": [
            {"role": "user", "content": 5},
            {"role": "assistant", "content": "from elsewhere"},
            {"role": "assistant", "replies": [{"content": "a", "tokens": [["x", -1, [["y", -2], 3]], 4]}], "shown": 99},
            {"role": "tool"},
        ],
    }
    made = page.evaluate(read, json.dumps(odd))
    assert made["id"] != odd["id"] and made["title"] == ""
    assert made["settings"]["temperature"] is None and made["settings"]["top_p"] == 0.5
    assert made["settings"]["json"] is False and "unknown" not in made["settings"]
    assert [message["role"] for message in made["messages"]] == ["user", "assistant", "assistant"]
    assert made["messages"][1]["replies"][0]["content"] == "from elsewhere"
    assert made["messages"][2]["shown"] == 0
    assert made["messages"][2]["replies"][0]["tokens"] == [["x", -1, [["y", -2]]]]
