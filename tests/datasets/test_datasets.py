"""Tools for data sets beside slow and plain ways to say the same, and what they refuse."""

import json
import re
from collections import Counter
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tiny_st import write_st_folder

import weft
from weft import data
from weft.cli.app import app
from weft.data.contamination import runs_of
from weft.data.statistics import lengths_of
from weft.errors import InputError, NotFoundError

PARTS = {"train": 0.7, "valid": 0.1, "test": 0.2}
WORDS = [
    *("the", "parcel", "is", "late", "and", "my", "card", "was", "refused", "at"),
    *("a", "shop", "in", "town", "when", "it", "rained", "on", "monday"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_st_folder(tmp_path_factory.mktemp("embedder"))


def texts(count: int, seed: int = 0, length: int = 12) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, length + 1))) + f" {n}" for n in range(count)]


def written(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_parts_are_those_of_a_hash_and_stay_when_rows_come(tmp_path):
    rows = [{"text": text, "n": n} for n, text in enumerate(texts(2000))]
    small = data.split(written(tmp_path / "small.jsonl", rows[:700]), tmp_path / "a", parts=PARTS, seed=3)
    grown = [*rows[700:], *reversed(rows[:700])]
    large = data.split(written(tmp_path / "large.jsonl", grown), tmp_path / "b", parts=PARTS, seed=3)
    assert sum(small.rows.values()) == 700 and sum(large.rows.values()) == 2000
    for name, share in PARTS.items():
        own = read(tmp_path / "a" / f"{name}.jsonl")
        later = read(tmp_path / "b" / f"{name}.jsonl")
        assert {row["n"] for row in own} == {row["n"] for row in later if row["n"] < 700}
        assert abs(len(later) / 2000 - share) < 4 * (share * (1 - share) / 2000) ** 0.5
        low = sum(list(PARTS.values())[: list(PARTS).index(name)])
        for row in own:  # by hand
            place = int(sha256(f"3\0{row['text']}".encode()).hexdigest()[:16], 16) / 2**64
            assert low <= place < low + share + 1e-12
    other = data.split(rows, tmp_path / "c", parts=PARTS, seed=4)
    assert other.rows != large.rows


def test_a_manifest_says_what_went_in_and_came_out(tmp_path):
    rows = [{"text": text, "customer": n % 7} for n, text in enumerate(texts(90))]
    source = written(tmp_path / "rows.jsonl", rows)
    data.split(source, tmp_path / "parts", key="customer")
    manifest = json.loads((tmp_path / "parts" / "manifest.json").read_text())
    assert manifest["tool"] == "split" and manifest["weft"] == weft.__version__ and manifest["options"]["seed"] == 0
    assert manifest["sources"]["data"] == {
        "file": "rows.jsonl",
        "sha256": sha256(source.read_bytes()).hexdigest(),
        "rows": 90,
    }
    where: dict[int, str] = {}
    for name, one in manifest["outputs"].items():
        path = tmp_path / "parts" / one["file"]
        assert one["sha256"] == sha256(path.read_bytes()).hexdigest() and one["rows"] == len(read(path))
        for row in read(path):
            assert where.setdefault(row["customer"], name) == name  # together
    assert len(where) == 7


def vectors_of(model: Path, several: list[str]) -> np.ndarray:
    return weft.Embedder(str(model)).encode_document(several, truncate="head")


def greedy(vectors: np.ndarray, threshold: float) -> dict[int, int]:
    """Which rows go, and for which: each beside all that stay before it."""
    wide = vectors.astype(np.float64)
    wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    cosines = wide @ wide.T
    stay: list[int] = []
    gone = {}
    for row in range(len(wide)):
        near = [other for other in stay if cosines[row, other] >= threshold]
        if near:
            gone[row] = max(near, key=lambda other: cosines[row, other])
        else:
            stay.append(row)
    return gone


@pytest.mark.parametrize("threshold", [0.6, 0.9, 0.985])
def test_near_duplicates_are_those_of_all_pairs(tmp_path, model, threshold):
    """Also where a text has more neighbours than are looked at first."""
    some = texts(60, 1, 4) + [f"the parcel is late {n}" for n in range(40)]
    rows = [{"text": text} for text in some]
    found = data.dedupe(
        rows, tmp_path / "kept.jsonl", model=model, threshold=threshold, removed=tmp_path / "gone.jsonl"
    )
    vectors = vectors_of(model, some)
    wanted = greedy(vectors, threshold)
    wide = vectors.astype(np.float64) / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert not found.exact and {one.row for one in found.near} == set(wanted)
    for one in found.near:
        assert abs(one.score - wide[one.row] @ wide[one.kept]) <= 1e-5
        assert abs(one.score - wide[one.row] @ wide[wanted[one.row]]) <= 1e-5
    assert [row["text"] for row in read(tmp_path / "kept.jsonl")] == [t for n, t in enumerate(some) if n not in wanted]
    assert [row["text"] for row in read(tmp_path / "gone.jsonl")] == [some[n] for n in sorted(wanted)]
    manifest = json.loads((tmp_path / "kept.manifest.json").read_text())
    assert manifest["outputs"]["kept"]["rows"] == found.kept == 100 - len(wanted)


def test_the_same_text_stays_once():
    rows = [{"text": text} for text in ["One  two", "one TWO", "\uff4fne two", "three", "one two.", "three\n"]]
    found = data.dedupe(rows)
    assert [(one.row, one.kept) for one in found.exact] == [(1, 0), (2, 0), (5, 3)] and found.kept == 3


def overlaps(row: str, judges: list[str], ngram: int) -> list[float]:
    """Of each judge the share of its runs that the row has, by looking through it word by word."""

    def words(text: str) -> list[str]:
        return re.findall(r"\w+", text.lower())

    own, made = words(row), []
    for judge in judges:
        wanted = words(judge)
        size = min(ngram, len(wanted))
        runs = {tuple(wanted[at : at + size]) for at in range(len(wanted) - size + 1)}
        has = [run for run in runs if any(tuple(own[at : at + size]) == run for at in range(len(own) - size + 1))]
        made.append(len(has) / len(runs) if len(wanted) >= 3 else 0.0)
    return made


def test_contamination_is_that_of_all_pairs(tmp_path, model):
    rng = np.random.default_rng(5)
    judges = [" ".join(rng.choice(WORDS, rng.integers(1, 25))) for _ in range(40)]
    rows = [" ".join(rng.choice(WORDS, rng.integers(1, 25))) for _ in range(60)]
    for number in range(0, 60, 3):  # parts of what is judged by, inside other words
        judge = judges[number % 40].split()
        start = int(rng.integers(0, len(judge)))
        rows[number] = " ".join([*rng.choice(WORDS, 3), *judge[start : start + 12], *rng.choice(WORDS, 3)])
    rows[5] = judges[7].upper() + " "
    own, against = [{"text": text} for text in rows], [{"text": text} for text in judges]
    made = data.check(
        own, against, ngram=5, overlap=0.4, clean=tmp_path / "clean.jsonl", found=tmp_path / "found.jsonl"
    )
    found = {one.row: one for one in made.found}
    assert made.counts["exact"] >= 1 and found[5].kind == "exact" and made.counts["ngram"] > 5
    for number, text in enumerate(rows):
        shares = overlaps(text, judges, 5)
        if number in found and found[number].kind == "exact":
            assert text.lower().split() == judges[found[number].against].split()
        elif number in found:
            assert found[number].score == pytest.approx(max(shares)) and max(shares) >= 0.4
            assert shares[found[number].against] == pytest.approx(max(shares))
        else:
            assert max(shares) < 0.4
    assert [row["text"] for row in read(tmp_path / "clean.jsonl")] == [t for n, t in enumerate(rows) if n not in found]
    assert {row["kind"] for row in read(tmp_path / "found.jsonl")} == {"exact", "ngram"}
    vectors = [vectors_of(model, several) for several in (rows, judges)]
    left, right = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in vectors)
    best = (left.astype(np.float64) @ right.T.astype(np.float64)).max(axis=1)
    threshold = float(np.sort(best)[len(best) // 2]) - 1e-4
    near = data.check(own, against, ngram=5, overlap=0.4, model=model, threshold=threshold)
    assert {one.row for one in near.found} == set(found) | {n for n in range(60) if best[n] >= threshold}


def test_short_evaluation_texts_are_found_inside_long_rows():
    rows = [{"text": "he said where is my card and left"}, {"text": "yes"}, {"text": "yes it is"}]
    found = data.check(rows, [{"text": "Where is my card?"}, {"text": "yes"}]).found
    assert [(one.row, one.against, one.kind) for one in found] == [(0, 0, "ngram"), (1, 1, "exact")]


def test_statistics_count_and_the_page_needs_nothing_else(tmp_path):
    rows = [{"text": text, "label": f"<b>{n % 3}", "n": n} for n, text in enumerate([*texts(50), "A b", "a  B", ""])]
    del rows[4]["n"]
    path = written(tmp_path / "rows.jsonl", rows)
    found = data.stats(path)
    data.write_page(found, tmp_path / "page.html")
    assert (found.rows, found.repeated, found.empty) == (53, 1, 1)
    assert found.fields == {"label": {"text": 53}, "n": {"number": 52}, "text": {"text": 53}}
    assert found.labels == dict(Counter(row["label"] for row in rows).most_common())
    sizes = sorted(len(row["text"]) for row in rows)
    one = found.lengths["characters"]
    assert (one.total, one.least, one.most, one.median) == (sum(sizes), sizes[0], sizes[-1], sizes[26])
    assert sum(count for _, count in one.bins) == 53
    for (first, count), (last, _) in pairwise(one.bins):
        assert count == sum(first <= size < last for size in sizes)
    page = (tmp_path / "page.html").read_text()
    assert "&lt;b&gt;0" in page and "<b>0" not in page and found.sha256 in page
    assert not re.search(r"https?://|<script|@import|src=", page)
    assert lengths_of([7]).bins[-1] == (7, 1)


def test_runs_of_words():
    assert runs_of(["a", "b", "a", "b"], 2) == {("a", "b"), ("b", "a")} and runs_of(["a"], 2) == set()


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: data.split([{"text": "a"}], "x", parts={"a": 0.5}), "sum of 1"),
        (lambda: data.split([{"text": "a"}], "x", parts={"a": 0.5, "../b": 0.5}), "letters and digits"),
        (lambda: data.split([{"text": "a"}], "x", parts={"a": 1.5}), "at most 1"),
        (lambda: data.split([], "x"), "no row"),
        (lambda: data.split([{"text": "a"}], "x", key="id"), "in the field 'id'"),
        (lambda: data.dedupe([{"body": "a"}]), "none of the fields"),
        (lambda: data.dedupe([{"text": "a"}], threshold=0.0), "threshold must be above 0"),
        (lambda: data.dedupe([{"text": "a"}], "out.csv"), "must end in .jsonl"),
        (lambda: data.check([{"text": "a"}], [{"text": "a"}], ngram=2), "at least 3 words"),
        (lambda: data.check([{"text": "a"}], [{"text": "a"}], overlap=2), "overlap must be"),
    ],
)
def test_what_cannot_be_done_is_refused(tmp_path, monkeypatch, call, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=said):
        call()
    assert not list(tmp_path.iterdir())


def test_files_are_not_written_over_themselves(tmp_path):
    path = written(tmp_path / "rows.jsonl", [{"text": "a"}])
    for call in (lambda: data.dedupe(path, path), lambda: data.check(path, path, clean=path)):
        with pytest.raises(InputError, match="is the file that is read"):
            call()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(InputError, match="not empty"):
        data.split(path, tmp_path / "full")
    with pytest.raises(NotFoundError):
        data.stats(tmp_path / "none.jsonl")


def test_the_commands_say_what_they_did(tmp_path, model):
    rows = [{"text": text, "label": "a"} for text in [*texts(30), "one two three", "One two three"]]
    path = written(tmp_path / "rows.jsonl", rows)

    def run(*given: str) -> tuple[int, dict]:
        found = CliRunner().invoke(app, ["data", *given, "--json"], prog_name="weft")
        return found.exit_code, json.loads(found.stdout)

    code, done = run("split", str(path), "-o", str(tmp_path / "parts"), "--parts", "train=0.5,test=0.5")
    assert code == 0 and sum(done["rows"].values()) == 32
    code, done = run("dedupe", str(path), "-o", str(tmp_path / "clean.jsonl"), "--near", str(model), "--threshold", "1")
    assert code == 0 and done["rows"] == 32 and done["exact"] == 1 and done["kept"] == 32 - 1 - done["near"]
    judges = written(tmp_path / "judges.jsonl", [{"text": "ONE two three"}])
    code, done = run("check", str(path), "--against", str(judges), "--strict")
    assert code == 1 and (done["exact"], done["touched"]) == (2, 1)
    code, done = run("stats", str(path), "--html", str(tmp_path / "page.html"))
    assert code == 0 and done["rows"] == 32 and (tmp_path / "page.html").is_file()
    for given in (["split", str(path), "-o", "x", "--parts", "a"], ["stats", str(tmp_path / "none.jsonl")]):
        assert CliRunner().invoke(app, ["data", *given], prog_name="weft").exit_code != 0
    shown = CliRunner().invoke(app, ["data", "stats", str(path)], prog_name="weft")
    assert shown.exit_code == 0 and "repeated texts" in shown.stdout
