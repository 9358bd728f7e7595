"""The texts that embeddings are compared on: every length from none to past the limit, many scripts, odd characters."""

SUBJECTS = [
    "The cat",
    "A small engine",
    "Our neighbour",
    "The committee",
    "An old map",
    "Rain",
    "The library",
    "This function",
]
VERBS = ["sleeps on", "describes", "repairs", "never mentions", "returns", "covers", "looks for", "depends on"]
OBJECTS = [
    "the warm roof.",
    "three broken clocks.",
    "a list of numbers",
    "the northern coast!",
    "its own shadow?",
    "naïve façades",
]

SCRIPTS = [
    "机器学习正在改变世界。",
    "今日は良い天気ですね。散歩に行きましょう。",
    "안녕하세요, 오늘은 날씨가 좋습니다.",
    "Привет, как дела? Всё хорошо.",
    "مرحبا بالعالم، هذا نص من اليمين إلى اليسار.",
    "שלום עולם, זה טקסט מימין לשמאל.",
    "नमस्ते दुनिया, यह एक परीक्षण है।",
    "สวัสดีชาวโลก นี่คือการทดสอบ",
    "Γειά σου Κόσμε, ΑΣΤΡΟΝΟΜΙΑ.",
    "Café CAFÉ cafe\u0301 naïve coöperate Straße İstanbul",
    "😀 😃 👨‍👩‍👧‍👦 👩🏽‍🚀 🇳🇴 ✈️ emoji in a row",
    "def f(x):\n    return [i ** 2 for i in range(x) if i % 2]  # squares",
    "SELECT name, COUNT(*) FROM t WHERE a >= 3.14 GROUP BY name;",
    "https://example.org/a/b?c=d&e=f#g user@example.org +47 22 33 44 55",
    "\u200b\u200czero\u200dwidth\ufeff and control \x00\x07 characters \u00ad soft",
    "tabs\tand\r\nnew\nlines   and    runs of     spaces",
    "100,000.50 € £ ¥ ½ ² ³ ∑ ∫ ≤ ≥ ≠ → ⇒ ♥ ™ ® ©",
    "(CLS) {SEP} <MASK> |UNK| brackets of every kind",
    "don't can't won't I'm you're we've they'd it's 'quoted' \"double\" «guillemets» “curly”",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis " + "x" * 120,
]


def texts() -> list[str]:
    """At least 200 texts; the order is part of the golden."""
    made = ["", " ", "a", "cat", "!", "猫", "😀", "\u0301", "0"]
    made += SCRIPTS
    made += [
        f"{s} {v} {o}" for i, s in enumerate(SUBJECTS) for j, v in enumerate(VERBS) for o in OBJECTS[(i + j) % 3 :: 3]
    ]
    made += [
        " ".join(["word"] * n)
        for n in (2, 3, 7, 15, 16, 17, 31, 33, 63, 65, 127, 129, 200, 253, 254, 255, 256, 300, 700)
    ]
    made += [" ".join(SCRIPTS), "深" * 300, "é " * 400]
    made += [" ".join(made[i : i + n]) for i, n in ((30, 5), (40, 12), (60, 20), (90, 35))]
    made += [made[i].upper() for i in range(30, 70)]
    return made
