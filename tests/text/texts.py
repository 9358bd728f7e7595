"""Seeded texts that go where tokenizers break: every plane, marks, runs, scripts, emoji, code, contractions."""

import random

_WORDS = [
    "the",
    "Running",
    "don't",
    "WE'LL",
    "it's",
    "naïve",
    "façade",
    "HTTPServer",
    "snake_case",
    "İstanbul",
    "ſs",
    "O'Neil",
]
_SCRIPTS = [
    (0x20, 0x7E), (0xA0, 0x24F), (0x250, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x590, 0x5FF), (0x600, 0x6FF),
    (0x900, 0xDFF), (0xE00, 0xEFF), (0x1100, 0x11FF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x2BFF),
    (0x3000, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xABFF), (0xAC00, 0xD7A3), (0xE000, 0xF8FF),
    (0xF900, 0xFFFD), (0x10000, 0x1FFFF), (0x1F300, 0x1FAFF), (0x20000, 0x323AF), (0xE0000, 0xE01EF),
    (0xF0000, 0x10FFFF),
]  # fmt: skip
_MARKS = ["\u0301", "\u0308", "\u0323", "\u0345", "\u05b0", "\u0651", "\u093c", "\u20dd", "\u302a", "\u1161", "\u11a8"]
_EMOJI = ["👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "❤️", "🦙", "1️⃣", "🧑🏿‍🚀"]
_CODE = [
    "def f(x):\n    return x**2\n", "for (int i=0;i<n;++i) {\n\t\ta[i] += 1;\r\n}", "SELECT * FROM t WHERE a='b';--",
    '{"k": [1, 2.5e-10, null]}', "https://example.org/a?b=c&d=%20#e", "x != y && !z || ~w ^ 0xFF", "#include <a.h>",
    "C:\\dir\\f",
]  # fmt: skip
_SPACES = [
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\x0b",
    "\x0c",
    "\x85",
    "\u2028",
    "\u200b",
    "\x1c",
]
_CONTRACTIONS = ["'s", "'S", "'t", "'re", "'RE", "'Ve", "'m", "'ll", "'LL", "'d", "'ſ", "''s", "'", "’s", "'x", "'l"]
_ODD = [
    "\x00",
    "\x01",
    "\x7f",
    "\ufeff",
    "\ufffd",
    "\ufffe",
    "\u00ad",
    "\u2060",
    "ª",
    "ǅ",
    "ﬆ",
    "½",
    "²",
    "Ⅷ",
    "٣",
    "①",
    "〇",
]


def random_text(rng: random.Random, specials: list[str]) -> str:
    """A text of 0 to 24 fragments; `specials` are strings to sprinkle in, such as a tokenizer's added tokens."""
    return "".join(_fragment(rng, specials) for _ in range(rng.randint(0, 24)))


def _fragment(rng: random.Random, specials: list[str]) -> str:
    kind = rng.randrange(14 if specials else 13)
    if kind <= 2:
        return rng.choice(["", " ", " "]) + rng.choice(_WORDS)
    if kind == 3:
        return _characters(rng, *rng.choice(_SCRIPTS), count=rng.randint(1, 8))
    if kind == 4:
        return _characters(rng, 0, 0x10FFFF, count=rng.randint(1, 3))
    if kind == 5:
        return "".join(rng.choice(_MARKS) for _ in range(rng.randint(1, 4)))
    if kind == 6:
        return rng.choice(_SPACES) * rng.choice([1, 1, 2, 3, 17])
    if kind == 7:
        return rng.choice(_EMOJI)
    if kind == 8:
        return rng.choice(_CODE)
    if kind == 9:
        return "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 9)))
    if kind == 10:
        return rng.choice(_CONTRACTIONS)
    if kind == 11:
        return rng.choice(_ODD)
    if kind == 12:
        return rng.choice("aA.,!?-_#/=~[]<|>") * rng.choice([1, 2, 5, 60, 130])
    return rng.choice(["", " ", "  ", "x"]) + rng.choice(specials) + rng.choice(["", " ", "  ", "x"])


def _characters(rng: random.Random, first: int, last: int, count: int) -> str:
    points = [rng.randint(first, last) for _ in range(count)]
    return "".join(chr(point) for point in points if not 0xD800 <= point <= 0xDFFF)


def random_texts(seed: int, count: int, specials: list[str] | None = None) -> list[str]:
    rng = random.Random(seed)
    return [random_text(rng, specials or []) for _ in range(count)]
