"""Write csrc/unicode/unicode_tables.inc: character properties, case, decompositions and compositions.

    python tools/make_unicode_tables.py > csrc/unicode/unicode_tables.inc

The source is Python's unicodedata. Tokenizers must agree with the library their models were published with, and that
library mixes Unicode versions: its regular expressions know 16.0, its case mapping and digits 17.0, its normalisation
forms 9.0, its BERT rules 8.0. The lists below are the differences from Unicode 14.0, the version in Python 3.11; run it
with that one. Ranges are hexadecimal, both ends included.
"""

import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable

LAST = 0x10FFFF
BLOCK = 256

# Assigned in Unicode 15.0, 15.1 and 16.0, by general category.
ASSIGNED_AFTER_14 = {
    "Lu": "1C89 A7CB-A7CC A7DA A7DC 10D50-10D65",
    "Ll": "1C8A A7CD A7DB 10D70-10D85 1DF25-1DF2A",
    "Lm": "10D4E 10D6F 16D40-16D42 16D6B-16D6C 1E030-1E06D 1E4EB",
    "Lo": "105C0-105F3 10D4A-10D4D 10D4F 10EC2-10EC4 1123F-11240 11380-11389 1138B 1138E 11390-113B5 113B7 113D1 113D3 "
    "11BC0-11BE0 11F02 11F04-11F10 11F12-11F33 1342F 13441-13446 13460-143FA 16100-1611D 16D43-16D6A 18CFF 1B132 1B155 "
    "1E4D0-1E4EA 1E5D0-1E5ED 1E5F0 2B739 2EBF0-2EE5D 31350-323AF",
    "Nd": "10D40-10D49 116D0-116E3 11BF0-11BF9 11F50-11F59 16130-16139 16D70-16D79 1CCF0-1CCF9 1E4F0-1E4F9 1E5F1-1E5FA",
    "No": "1D2C0-1D2D3",
    "Po": "1B4E-1B4F 1B7F 10D6E 113D4-113D5 113D7-113D8 11B00-11B09 11BE1 11F43-11F4F 16D6D-16D6F 1E5FF",
    "So": "2427-2429 2FFC-2FFF 31E4-31E5 31EF 10D8E-10D8F 1CC00-1CCEF 1CD00-1CEB3 1F6DC 1F774-1F776 1F77B-1F77F 1F7D9 "
    "1F8B2-1F8BB 1F8C0-1F8C1 1FA75-1FA77 1FA87-1FA89 1FA8F 1FAAD-1FAAF 1FABB-1FABF 1FAC6 1FACE-1FACF 1FADA-1FADC 1FADF "
    "1FAE8-1FAE9 1FAF7-1FAF8 1FBCB-1FBEF",
    "Mn": "897 CF3 ECE 10D69-10D6D 10EFC-10EFF 11241 113B8-113C0 113C2 113C5 113C7-113CA 113CC-113D0 113D2 113E1-113E2 "
    "11F00-11F01 11F03 11F34-11F3A 11F3E-11F42 11F5A 13440 13447-13455 1611E-1612F 1E08F 1E4EC-1E4EF 1E5EE-1E5EF",
}
# Numeric since Unicode 17.0.
NUMERIC_AFTER_16 = "11DE0-11DE9 16FF4-16FF6"
# Lower-case mappings after Unicode 14.0: first, last, distance.
LOWER_AFTER_14 = [
    (0x1C89, 0x1C89, 1),
    (0xA7CB, 0xA7CB, 0x264 - 0xA7CB),
    (0xA7CC, 0xA7CC, 1),
    (0xA7CE, 0xA7CE, 1),
    (0xA7D2, 0xA7D2, 1),
    (0xA7D4, 0xA7D4, 1),
    (0xA7DA, 0xA7DA, 1),
    (0xA7DC, 0xA7DC, 0x19B - 0xA7DC),
    (0x10D50, 0x10D65, 32),
    (0x16EA0, 0x16EB8, 27),
]
# Alphabetic without being a letter, or joining letters: part of \w.
WORD_EXTRA = "200C-200D 24B6-24E9 1F130-1F149 1F150-1F169 1F170-1F189"

# What the BERT rules of Unicode 8.0 do not know yet, or knew otherwise.
PUNCTUATION_AFTER_8 = (
    "61D 9FD A76 C77 C84 1B7D-1B7E 2E43-2E4F 2E52-2E5D 10EAD 10F55-10F59 10F86-10F89 1144B-1144F 1145A-1145B 1145D "
    "11660-1166C 116B9 1183B 11944-11946 119E2 11A3F-11A46 11A9A-11A9C 11A9E-11AA2 11C41-11C45 11C70-11C71 11EF7-11EF8 "
    "11FFF 12FF1-12FF2 16E97-16E9A 16FE2 1E95E-1E95F"
)
PUNCTUATION_UNTIL_8 = "166D 111C9"
ACCENT_AFTER_8 = (
    "7FD 898-89F 8CA-8E1 9FE AFA-AFF B55 C04 C3C D00 D3B-D3C D81 EBA 180F 1885-1886 1ABF-1ACE 1DF6-1DFB A82C A8C5 A8FF "
    "A9BD 10D24-10D27 10EAB-10EAC 10F46-10F50 10F82-10F85 11070 11073-11074 110C2 111C9 111CF 1123E 1133B 11438-1143F "
    "11442-11444 11446 1145E 1182F-11837 11839-1183A 1193B-1193C 1193E 11943 119D4-119D7 119DA-119DB 119E0 11A01-11A0A "
    "11A33-11A38 11A3B-11A3E 11A47 11A51-11A56 11A59-11A5B 11A8A-11A96 11A98-11A99 11C30-11C36 11C38-11C3D 11C3F "
    "11C92-11CA7 11CAA-11CB0 11CB2-11CB3 11CB5-11CB6 11D31-11D36 11D3A 11D3C-11D3D 11D3F-11D45 11D47 11D90-11D91 11D95 "
    "11D97 11EF3-11EF4 16F4F 16FE4 1CF00-1CF2D 1CF30-1CF46 1E000-1E006 1E008-1E018 1E01B-1E021 1E023-1E024 1E026-1E02A "
    "1E130-1E136 1E2AE 1E2EC-1E2EF 1E944-1E94A"
)
ACCENT_UNTIL_8 = "1734"
CONTROL_AFTER_8 = "890-891 8E2 110CD 13430-1343F"

# What the normalisation forms and StripAccents of Unicode 9.0 do not know yet, or knew otherwise.
MARK_AFTER_9 = (
    "7FD 898-89F 8CA-8D3 9FE AFA-AFF B55 C04 C3C D00 D3B-D3C D81 EBA 1715 180F 1ABF-1ACE 1CF7 1DF6-1DFA A82C A8FF "
    "10D24-10D27 10EAB-10EAC 10F46-10F50 10F82-10F85 11070 11073-11074 110C2 11145-11146 111C9 111CE-111CF 1133B 1145E "
    "1182C-1183A 11930-11935 11937-11938 1193B-1193E 11940 11942-11943 119D1-119D7 119DA-119E0 119E4 11A01-11A0A "
    "11A33-11A39 11A3B-11A3E 11A47 11A51-11A5B 11A8A-11A99 11D31-11D36 11D3A 11D3C-11D3D 11D3F-11D45 11D47 11D8A-11D8E "
    "11D90-11D91 11D93-11D97 11EF3-11EF6 16F4F 16F7F-16F87 16FE4 16FF0-16FF1 1CF00-1CF2D 1CF30-1CF46 1E130-1E136 1E2AE "
    "1E2EC-1E2EF"
)
MARK_UNTIL_9 = "1CF2-1CF3"
DECOMPOSES_AFTER_9 = "32FF A7F2-A7F4 AB69 10781-10785 10787-107B0 107B2-107BA 11938 1F16C 1FBF0-1FBF9"

# Bits of the property word, in the order of the enum in unicode.h.
LETTER, NUMBER, PUNCTUATION, SYMBOL, MARK, SPACE, UPPERISH, LOWERISH, WORD, NUMERIC = (1 << i for i in range(10))
BERT_PUNCTUATION, BERT_ACCENT, BERT_CONTROL, COMBINING, UNSTABLE_NFC, CANONICAL, COMPATIBLE = (
    1 << i for i in range(10, 17)
)


def ranges(text: str) -> set[int]:
    """The code points of a list such as "9FE AFA-AFF"."""
    points: set[int] = set()
    for item in text.split():
        first, _, last = item.partition("-")
        points.update(range(int(first, 16), int(last or first, 16) + 1))
    return points


NEW = {point: category for category, text in ASSIGNED_AFTER_14.items() for point in ranges(text)}
SPACES = ranges("9-D 20 85 A0 1680 2000-200A 2028-2029 202F 205F 3000")
OLD = {
    name: ranges(text)
    for name, text in {
        "punctuation_out": PUNCTUATION_AFTER_8,
        "punctuation_in": PUNCTUATION_UNTIL_8,
        "accent_out": ACCENT_AFTER_8,
        "accent_in": ACCENT_UNTIL_8,
        "control_out": CONTROL_AFTER_8,
        "mark_out": MARK_AFTER_9,
        "mark_in": MARK_UNTIL_9,
        "decomposes_out": DECOMPOSES_AFTER_9,
        "numeric": NUMERIC_AFTER_16,
        "word": WORD_EXTRA,
    }.items()
}
NEW_LOWER = {point: distance for first, last, distance in LOWER_AFTER_14 for point in range(first, last + 1)}


def category(point: int) -> str:
    return NEW.get(point) or unicodedata.category(chr(point))


def combining(point: int) -> int:
    return 0 if point in OLD["mark_out"] or point in NEW else unicodedata.combining(chr(point))


def decomposition(point: int, form: str) -> list[int]:
    """The full decomposition, or nothing when the character is its own. Hangul is left to arithmetic."""
    if 0xAC00 <= point <= 0xD7A3 or point in OLD["decomposes_out"] or point in NEW:
        return []
    text = unicodedata.normalize(form, chr(point))
    return [] if text == chr(point) else [ord(c) for c in text]


def lower_distance(point: int) -> int:
    """To the lower-case character; U+0130, the only one that becomes two characters, is handled in code."""
    if point in NEW_LOWER:
        return NEW_LOWER[point]
    lower = chr(point).lower()
    return ord(lower) - point if len(lower) == 1 else 0


def compositions() -> list[tuple[int, int, int]]:
    """(first, second, composed) for every pair that NFC joins, sorted."""
    found = []
    for point in range(LAST + 1):
        field = unicodedata.decomposition(chr(point))
        if not field or field.startswith("<") or point in OLD["decomposes_out"] or point in NEW:
            continue
        parts = [int(part, 16) for part in field.split()]
        if len(parts) == 2 and unicodedata.normalize("NFC", chr(point)) == chr(point):
            found.append((parts[0], parts[1], point))
    return sorted(found)


def flags(point: int, seconds: set[int]) -> int:
    kind = category(point)
    bits = {"L": LETTER, "N": NUMBER, "P": PUNCTUATION, "S": SYMBOL, "M": MARK}.get(kind[0], 0)
    conditions = [
        (SPACE, point in SPACES),
        (UPPERISH, kind in ("Lu", "Lt", "Lm", "Lo") or kind[0] == "M"),
        (LOWERISH, kind in ("Ll", "Lm", "Lo") or kind[0] == "M"),
        (WORD, kind[0] in "LM" or kind in ("Nd", "Nl", "Pc") or point in OLD["word"]),
        (NUMERIC, kind[0] == "N" or point in OLD["numeric"]),
        (BERT_PUNCTUATION, is_bert_punctuation(point)),
        (BERT_ACCENT, is_old(point, "accent", unicodedata.category(chr(point)) == "Mn")),
        (BERT_CONTROL, is_bert_control(point)),
        (COMBINING, is_old(point, "mark", unicodedata.category(chr(point))[0] == "M")),
        (UNSTABLE_NFC, is_unstable(point, seconds)),
        (CANONICAL, bool(decomposition(point, "NFD"))),
        (COMPATIBLE, bool(decomposition(point, "NFKD"))),
    ]
    return bits | sum(bit for bit, holds in conditions if holds)


def is_old(point: int, name: str, now: bool) -> bool:
    return point in OLD[name + "_in"] or (now and point not in OLD[name + "_out"] and point not in NEW)


def is_bert_punctuation(point: int) -> bool:
    if point < 128:
        return chr(point).isprintable() and not chr(point).isalnum() and point != 32
    return is_old(point, "punctuation", unicodedata.category(chr(point))[0] == "P")


def is_bert_control(point: int) -> bool:
    """What BERT's cleaning removes: control, format and private use, and the replacement character."""
    if point in (0x9, 0xA, 0xD):
        return False
    kind = unicodedata.category(chr(point))
    return point == 0xFFFD or (kind in ("Cc", "Cf", "Co") and point not in OLD["control_out"] and point not in NEW)


def is_unstable(point: int, seconds: set[int]) -> bool:
    """True when NFC may change a text because of this character: the text then takes the slow path."""
    if combining(point) or point in seconds or 0x1161 <= point <= 0x1175 or 0x11A8 <= point <= 0x11C2:
        return True
    if not decomposition(point, "NFD"):
        return False
    return unicodedata.normalize("NFC", chr(point)) != chr(point)


def wrapped(items: Iterable[str]) -> str:
    """The items, each followed by a comma, in lines of at most 120 characters."""
    lines, line = [], ""
    for item in items:
        if len(line) + len(item) >= 120:
            lines.append(line)
            line = ""
        line += item + ","
    return "\n".join([*lines, line])


def rows(numbers: Iterable[int]) -> str:
    return wrapped(str(number) for number in numbers)


def braced(records: Iterable[tuple[int, int, int]]) -> str:
    return wrapped(f"{{{a},{b},{c}}}" for a, b, c in records)


def print_properties(seconds: set[int]) -> None:
    """Two stages: a block for each run of BLOCK code points, a class for each place in a block; then the classes."""
    records = [(flags(point, seconds), lower_distance(point), combining(point)) for point in range(LAST + 1)]
    by_frequency = [record for record, _ in Counter(records).most_common()]  # frequent ones get short numbers
    number = {record: i for i, record in enumerate(by_frequency)}
    assert len(number) <= 256
    blocks: dict[tuple[int, ...], int] = {}
    first_stage = []
    for start in range(0, LAST + 1, BLOCK):
        block = tuple(number[record] for record in records[start : start + BLOCK])
        first_stage.append(blocks.setdefault(block, len(blocks)))
    while first_stage[-1] == first_stage[-2]:  # the last block stands for everything behind it
        first_stage.pop()
    print(f"constexpr Property kClasses[] = {{\n{braced(by_frequency)}}};")
    print(f"constexpr uint16_t kBlockOf[] = {{\n{rows(first_stage)}}};")
    print(f"constexpr uint8_t kClassOf[] = {{\n{rows(c for block in blocks for c in block)}}};")


def print_decompositions(form: str, name: str, skip: str | None) -> None:
    """Sorted code points, how many characters each becomes, and the characters. `skip`: a form with its own table."""
    points, sizes, data = [], [], []
    for point in range(LAST + 1):
        parts = decomposition(point, form)
        if parts and not (skip and parts == decomposition(point, skip)):
            points.append(point)
            sizes.append(len(parts))
            data.extend(parts)
    print(f"constexpr char32_t k{name}Points[] = {{\n{rows(points)}}};")
    print(f"constexpr uint8_t k{name}Size[] = {{\n{rows(sizes)}}};")
    print(f"constexpr char32_t k{name}Data[] = {{\n{rows(data)}}};")


def main() -> None:
    pairs = compositions()
    print(
        "// Generated by tools/make_unicode_tables.py: Unicode 16.0 categories, with the older or newer versions that"
    )
    print("// the tokenizer libraries use elsewhere (see there). Do not edit.")
    print_properties({second for _, second, _ in pairs})
    print_decompositions("NFD", "Canonical", None)
    print_decompositions("NFKD", "Compatible", "NFD")
    print(f"constexpr char32_t kComposition[][3] = {{\n{braced(pairs)}}};")


if __name__ == "__main__":
    sys.exit(main())
