"""A text is cut into its sentences, and the one nearest to a query is found, with the line it is in."""

import weft
from weft.embed.index.sentences import nearest_sentences, sentences

TEXT = """# Travel notes
The train to Berlin leaves at nine. It stops in Halle, e.g. for
a minute. I met Dr. No there! "Why?" he asked.

- buy a ticket
- pack the
  bag
1. first
2. second

東京は首都です。大阪も。"""


def test_sentences_lines_items_and_headings_are_apart() -> None:
    found = sentences(TEXT)
    assert [part.text for part in found] == [
        "# Travel notes",
        "The train to Berlin leaves at nine.",
        "It stops in Halle, e.g. for\na minute.",
        "I met Dr. No there!",
        '"Why?" he asked.',
        "- buy a ticket",
        "- pack the\n  bag",
        "1. first",
        "2. second",
        "東京は首都です。",
        "大阪も。",
    ]
    assert all(TEXT[part.start : part.end] == part.text for part in found)
    assert [part.lines_before for part in found] == [0, 1, 1, 2, 2, 4, 5, 7, 8, 10, 10]


def test_long_passages_without_sentences_are_cut_at_their_lines() -> None:
    code = "\n".join(f"    value_{i} = compute(value_{i - 1}, {i})" for i in range(20))
    assert [part.text for part in sentences(code)] == [line.strip() for line in code.splitlines()]
    assert sentences("") == sentences(" \n\n ") == []


def test_the_nearest_sentence_is_the_one_the_embedder_ranks_first(tiny_embedder: weft.Embedder) -> None:
    texts = ["The cat sat. A dog slept on the mat. One two.", None, "", "the quick fox\n\nthe lazy dog"]
    for query in ("dog", "the cat", "one two three"):
        found = nearest_sentences(tiny_embedder, query, texts)
        assert found[1] is found[2] is None
        for text, part in ((texts[0], found[0]), (texts[3], found[3])):
            listed = [sentence.text for sentence in sentences(text or "")]
            assert part is not None and part.text == listed[tiny_embedder.rank(query, listed)[0].index]
    assert nearest_sentences(tiny_embedder, "cat", []) == []
