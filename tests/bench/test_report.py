"""The figures in the pages are the newest of each case, with the best peer of the same kind and the command."""

from typing import Any

from weft.bench.measure import summary
from weft.bench.report import HEADLINES, Row, bars, figures, headlines, number, svg


def line(
    runner: str, median: float, unit: str = "tokens/s", workload: str = "embed_256", **more: Any
) -> dict[str, Any]:
    return {"workload": workload, "runner": runner, "unit": unit, "median": median, "low": 1, "high": 9999, **more}


def record(case: str, commit: str, *rows: dict[str, Any]) -> dict[str, Any]:
    return {"case": case, "commit": commit, "model": "m", "threads": 2, "rows": list(rows)}


def test_the_newest_record_of_a_case_counts() -> None:
    table = figures([record("decode", "old", line("weft", 5)), record("decode", "new", line("weft", 7))])
    assert "new" in table and "old" not in table and table.count("\n") == 2


def test_records_of_other_tools_are_passed_over() -> None:
    assert figures([record("tokenizers", "x", {"tokenizer": "t"})]).count("\n") == 1


def test_the_best_peer_of_the_same_kind_stands_beside_weft() -> None:
    rows = [line("weft f32", 30, share=0.5, roof="f32"), line("weft bf16", 90), line("A f32", 10), line("B f32", 20),
            line("B int8", 500)]  # fmt: skip
    table = figures([record("vs embed", "c", *rows)]).splitlines()[2:]
    assert (
        table[0] == "| `embed_256` in f32 | m | 2 | 30.0 tokens/s (1 to 9,999) | 50 % of f32 | B f32 20.0: weft 1.50× "
        "| `weft bench vs embed -m m --threads 2 --compute f32` | c |"
    )
    assert "|  |  |" in table[1]


def test_less_is_better_for_times() -> None:
    rows = [line("weft", 2, "ms"), line("A", 4, "ms"), line("B", 8, "ms")]
    assert "A 4: weft 2.00×" in figures([record("vs startup", "c", *rows)])


def test_bars_and_pictures_show_everybody_and_escape_names() -> None:
    rows = [Row("w", "weft", "", "ms", summary([2.0])), Row("w", "<peer>", "", "ms", summary([4.0]))]
    drawn = bars(rows)
    assert drawn[0] == "w (ms, less is better)" and drawn[2].count("█") == 2 * drawn[1].count("█")
    picture = svg(rows, "a & b")
    assert "&lt;peer&gt;" in picture and "a &amp; b" in picture and picture.count("<rect ") == 2


def test_numbers_have_three_digits() -> None:
    assert [number(value) for value in (0.01234, 5, 12.34, 99.96, 1234.5)] == ["0.0123", "5", "12.3", "100.0", "1,234"]


def test_a_figure_with_a_peer_beside_it_goes_before_a_newer_one_without() -> None:
    with_peer = record("vs embed", "old", line("weft bf16", 8), line("A bf16", 4))
    without = record("vs embed", "new", line("weft bf16", 9), line("weft bf16x3", 6), line("A f32", 3))
    table = figures([with_peer, without]).splitlines()[2:]
    assert "A bf16 4: weft 2.00×" in table[0] and "old" in table[0]
    assert "A f32 3: weft 2.00×" in table[1]  # sums of two bfloat16 are of the f32 kind


def test_the_readme_s_six_rows_have_their_commands() -> None:
    records = []
    for case, model, threads, workload, runner in HEADLINES:
        one = {**line(runner, 7), "workload": workload}
        records.append({**record(case, "c", one), "model": model, "threads": threads})
    rows = headlines(records).splitlines()[2:]
    assert len(rows) == 6 and all("`weft bench vs " in row for row in rows)
    assert "`weft bench vs parallel --threads 2 --sequences 32`" in rows[2]
    assert "`weft bench vs decode -m qwen2.5-coder --threads 2`" in rows[3]
