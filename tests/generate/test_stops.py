"""Stop strings end a text at the same character however it is cut, and hold back no more than they must."""

import random

import pytest

from weft.generate.choice.stops import StopText


def whole(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text up to the stop string that ends first, the longer of two; and whether there was one."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def random_text(rng: random.Random, length: int) -> str:
    return "".join(rng.choice("ab") for _ in range(length))  # two letters: overlaps everywhere


@pytest.mark.parametrize("seed", range(300))
def test_the_cut_does_not_matter(seed: int) -> None:
    rng = random.Random(seed)
    stops = [random_text(rng, rng.randint(1, 6)) for _ in range(rng.randint(0, 4))]
    text = random_text(rng, rng.randint(0, 40)) if seed % 2 else "abaabaaabab" * 3
    for _ in range(10):
        matcher, out, rest = StopText(stops), "", text
        while rest and not matcher.stopped:
            size = rng.randint(0, 5)
            out += matcher.add(rest[:size])
            rest = rest[size:]
        assert (out + matcher.finish(), matcher.stopped) == whole(text, stops)


@pytest.mark.parametrize("seed", range(100))
def test_only_a_beginning_of_a_stop_string_is_held_back(seed: int) -> None:
    rng = random.Random(seed)
    stops = [random_text(rng, rng.randint(1, 8)) for _ in range(rng.randint(1, 3))]
    matcher, out, text = StopText(stops), "", ""
    for character in random_text(rng, 60):
        out += matcher.add(character)
        text += character
        if matcher.stopped:
            break
        held = max(n for n in range(9) for stop in stops if n < len(stop) and text.endswith(stop[:n]))
        assert out == text[: len(text) - held]


def test_nothing_follows_a_stop_string() -> None:
    matcher = StopText(["##"])
    assert matcher.add("one #") == "one "
    assert matcher.add("# two") == ""
    assert matcher.stopped
    assert matcher.add("three") == matcher.finish() == ""


def test_without_stop_strings_text_passes_through() -> None:
    matcher = StopText([])
    assert matcher.add("anything") == "anything"
    assert matcher.finish() == "" and not matcher.stopped


def test_a_long_repetitive_text_takes_linear_time() -> None:
    matcher = StopText(["a" * 255 + "b"] * 4)
    steps = 0
    for prefix in matcher._prefixes:
        extend = prefix._extend

        def counted(length: int, character: str, extend: object = extend) -> int:
            nonlocal steps
            steps += 1
            return extend(length, character)  # type: ignore[operator]

        prefix._extend = counted  # type: ignore[method-assign]
    out = matcher.add("a" * 5000)
    assert len(out) == 5000 - 255 and steps == 4 * 5000
