"""Versions are added once, verified when loaded, moved by legal steps only, and removed only when nobody needs them."""

from __future__ import annotations

import itertools
import os
import random
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

from weft.errors import (
    ChecksumError,
    InputError,
    InvalidTransitionError,
    NotFoundError,
    RegistryError,
    VersionError,
    WeftError,
)
from weft.registry import Registry, database
from weft.registry.semver import Semver
from weft.registry.states import MOVES, check_move

# The order that semver.org's own page gives, with its examples of equal numbers, lengths and kinds.
ORDERED = (
    *("0.0.4", "0.9.0", "1.0.0-0", "1.0.0-2", "1.0.0-11", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta"),
    *("1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0", "1.0.1", "1.2.0", "1.10.0", "2.0.0"),
)
# From the lists of valid and invalid versions that semver.org's suggested expression is tested with.
LEGAL = (
    *("1.1.2-prerelease+meta", "1.1.2+meta-valid", "1.0.0-alpha0.valid", "1.0.0-alpha.0valid", "1.0.0-0A.is.legal"),
    *("1.0.0-alpha-a.b-c-something+build.1-aef.1-its-okay", "1.2.3----RC-SNAPSHOT.12.9.1--.12", "2.0.1-alpha.1227"),
    *("99999999999999999999999.999999999999999999.99999999999999999", "1.0.0+0.build.1-rc.10000aaa-kk-0.1"),
)
ILLEGAL = (
    *("", "1", "1.2", "1.2.3-0123", "1.2.3-0123.0123", "1.1.2+.123", "+invalid", "-invalid", "alpha", "01.1.1"),
    *("1.01.1", "1.1.01", "1.2.3.DEV", "1.2-SNAPSHOT", "1.0.0-alpha..1", "1.0.0-alpha_beta", "v1.2.3", "1.2.3 "),
    *("1.2.3-", "1.2.3+", "1.2.3+a+b", "9.8.7-whatever+meta+meta", "1.2.3\n", "\u0661.2.3", "1." + "9" * 200 + ".0"),
)


def test_versions_are_ordered_as_semver_says():
    shuffled = list(ORDERED)
    random.Random(7).shuffle(shuffled)
    assert sorted(shuffled, key=lambda text: Semver.parse(text).precedence) == list(ORDERED)
    assert Semver.parse("1.0.0+one").precedence == Semver.parse("1.0.0+two").precedence


@pytest.mark.parametrize("text", LEGAL)
def test_legal_versions_are_taken(text, registry, files):
    assert registry.add("it", files("a"), text).version == text


@pytest.mark.parametrize("text", [*ILLEGAL, None, 1])
def test_illegal_versions_are_refused(text, registry, files):
    with pytest.raises(VersionError, match="MAJOR"):
        registry.add("it", files("a"), text)
    assert registry.names() == [] and not list((registry.folder / "staging").glob("*"))


def test_every_move_that_is_not_in_the_table_is_refused():
    for before, after in itertools.product(MOVES, MOVES):
        if after in MOVES[before]:
            check_move("it", "1.0.0", before, after)
        else:
            with pytest.raises(InvalidTransitionError, match=before):
                check_move("it", "1.0.0", before, after)
    assert MOVES["archived"] == () and MOVES["production"] == ("staged",)


def test_what_was_added_is_there_and_loads(registry, files):
    source = files("one")
    made = registry.add("it", source, "1.0.0", data={"rows": 3}, evaluations={"accuracy": 0.5}, description="first")
    (source / "inner" / "weights").write_text("changed afterwards")
    found = Registry(registry.folder).get("it@1.0.0")
    assert found == made and found.state == "validated" and found.data == {"rows": 3}
    assert [(one.metric, one.value) for one in found.evaluations] == [("accuracy", 0.5)]
    assert (registry.path("it@1.0.0") / "inner" / "weights").read_text() == "one"


def test_a_file_is_loaded_as_a_file_and_a_split_one_with_its_parts(registry, tmp_path):
    for i in (1, 2):
        (tmp_path / f"m-0000{i}-of-00002.gguf").write_text(f"part {i}")
    registry.add("it", tmp_path / "m-00001-of-00002.gguf", "1.0.0")
    found = registry.path("it@1.0.0")
    assert found.name == "m-00001-of-00002.gguf" and sorted(p.name for p in found.parent.iterdir()) == [
        "m-00001-of-00002.gguf",
        "m-00002-of-00002.gguf",
    ]
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(NotFoundError, match="m-00002-of-00002"):
        registry.add("it", tmp_path / "m-00001-of-00002.gguf", "1.1.0")


def test_links_to_files_are_followed_and_states_of_runs_left_out(registry, tmp_path):
    (tmp_path / "blob").write_text("content")
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    (folder / "training.safetensors").write_text("a run")
    (folder / ".hidden").write_text("no")
    registry.add("it", folder, "1.0.0")
    found = registry.path("it@1.0.0")
    assert [path.name for path in found.iterdir()] == ["model.safetensors"] and not next(found.iterdir()).is_symlink()


def test_a_version_never_changes(registry, files):
    first = registry.add("it", files("a"), "1.0.0")
    assert registry.add("it", files("a"), "1.0.0") == first
    with pytest.raises(VersionError, match="other files"):
        registry.add("it", files("b"), "1.0.0")
    with pytest.raises(VersionError, match="same rank as 1"):
        registry.add("it", files("b"), "1.0.0+other")
    with pytest.raises(InputError, match="kind"):
        registry.add("it", files("b"), "1.1.0", kind="index")
    assert len(registry.named("it").versions) == 1


def test_a_changed_byte_is_noticed_and_adding_the_files_again_mends_it(registry, files):
    registry.add("it", files("a"), "1.0.0")
    weights = registry.path("it@1.0.0") / "inner" / "weights"
    weights.chmod(0o644)
    weights.write_text("b")
    with pytest.raises(ChecksumError, match="weights is not what was added"):
        registry.path("it@1.0.0")
    weights.unlink()
    with pytest.raises(ChecksumError):
        registry.path("it@1.0.0")
    registry.add("it", files("a"), "1.0.0")
    assert (registry.path("it@1.0.0") / "inner" / "weights").read_text() == "a"
    assert registry.events("it")[0].action == "restored"


def test_versions_share_the_files_that_they_have_in_common(registry, files):
    registry.add("it", files("a"), "1.0.0")
    registry.add("it", files("b"), "1.1.0")
    one, other = (registry.path(f"it@1.{i}.0") / "inner" / "shared" for i in (0, 1))
    assert one.stat().st_ino == other.stat().st_ino and one.stat().st_nlink == 2
    assert os.access(registry.folder, os.W_OK) and one.stat().st_mode & 0o222 == 0


def test_links_in_place_of_copies(registry, files):
    source = files("a")
    registry.add("it", source, "1.0.0", link=True)
    added = registry.path("it@1.0.0") / "inner" / "weights"
    assert added.stat().st_ino == (source / "inner" / "weights").stat().st_ino


def three(registry: Registry, files) -> None:
    for i in range(3):
        registry.add("it", files(str(i)), f"1.{i}.0", evaluations={"m": i})


def test_promoting_and_rolling_back(registry, files):
    three(registry, files)
    assert registry.promote("it@1.0.0").previous is None
    assert registry.promote("it@1.1.0").previous == "1.0.0"
    assert registry.promote("it@1.2.0").previous == "1.1.0"
    assert [v.state for v in registry.named("it").versions] == ["staged", "staged", "production"]
    assert registry.get("it").version == "1.2.0" and not registry.promote("it@1.2.0").changed
    assert registry.rollback("it").version == "1.1.0"
    assert registry.rollback("it").version == "1.0.0"
    with pytest.raises(InvalidTransitionError, match="no earlier version"):
        registry.rollback("it")
    assert registry.get("it@production").version == "1.0.0"
    assert [v.state for v in registry.named("it").versions] == ["production", "staged", "staged"]


def test_a_rollback_passes_over_versions_that_do_not_load(registry, files):
    three(registry, files)
    for i in range(3):
        registry.promote(f"it@1.{i}.0")
    registry.mark("it@1.1.0", "archived")
    assert registry.rollback("it").version == "1.0.0"


def test_only_the_last_hundred_placements_are_kept(registry, files):
    three(registry, files)
    for i in range(150):
        registry.promote(f"it@1.{i % 2}.0")
    for _ in range(99):
        registry.rollback("it")
    with pytest.raises(InvalidTransitionError):
        registry.rollback("it")


def test_a_version_that_nothing_is_known_about_is_not_promoted(registry, files):
    registry.add("it", files("a"), "1.0.0")
    for _ in range(2):  # also not by the way of the candidate
        with pytest.raises(InvalidTransitionError, match="no evaluation"):
            registry.promote("it@1.0.0")
        registry.promote("it@1.0.0", to="candidate")
    registry.evaluate("it@candidate", {"m": 1}, data="held out")
    assert registry.promote("it").version == "1.0.0"
    registry.add("it", files("b"), "1.1.0")
    assert registry.promote("it@1.1.0", force=True).previous == "1.0.0"
    assert registry.events("it")[0].detail["forced"]


def test_deprecated_and_archived_versions(registry, files):
    three(registry, files)
    registry.promote("it@1.0.0")
    with pytest.raises(InvalidTransitionError, match="promote another"):
        registry.mark("it@1.0.0", "archived")
    registry.mark("it@1.2.0", "deprecated")
    assert registry.get("it@latest").version == "1.1.0"
    with pytest.raises(InvalidTransitionError, match="mark it validated"):
        registry.promote("it@1.2.0")
    registry.mark("it@1.2.0", "archived")
    for move in (
        lambda: registry.path("it@1.2.0"),
        lambda: registry.promote("it@1.2.0", force=True),
        lambda: registry.promote("it@1.2.0", to="candidate"),
        lambda: registry.mark("it@1.2.0", "validated"),
    ):
        with pytest.raises(InvalidTransitionError):
            move()
    with pytest.raises(InputError, match="promote"):
        registry.mark("it@1.1.0", "production")


def test_the_latest_is_the_highest_release(registry, files):
    registry.add("it", files("a"), "2.0.0-rc.1")
    assert registry.get("it@latest").version == "2.0.0-rc.1"
    registry.add("it", files("b"), "1.9.0")
    registry.add("it", files("c"), "1.10.0")
    assert registry.get("it@latest").version == "1.10.0"
    assert [v.version for v in registry.named("it").versions] == ["1.9.0", "1.10.0", "2.0.0-rc.1"]


def test_what_is_not_there_is_named(registry, files):
    with pytest.raises(NotFoundError, match="weft registry add"):
        registry.get("it")
    registry.add("it", files("a"), "1.0.0")
    for asked in ("it", "it@candidate", "it@1.1.0", "other@1.0.0"):
        with pytest.raises(NotFoundError, match=r"1\.0\.0|has it"):
            registry.get(asked)
    with pytest.raises(VersionError):
        registry.get("it@1.0")
    for name in ("", "a b", "../up", "-x", "x" * 101):
        with pytest.raises(InputError):
            registry.add(name, files("a"), "1.0.0")
    for alias in ("latest", "1.0.0", "Big", "", "a b"):
        with pytest.raises(InputError, match="alias"):
            registry.promote("it@1.0.0", to=alias)
    with pytest.raises(NotFoundError, match="no registry"):
        Registry(registry.folder / "none", create=False)


@pytest.mark.parametrize("metrics", [{"m": float("nan")}, {"m": "high"}, {"m": True}, {"": 1.0}, {}])
def test_measures_are_numbers(metrics, registry, files):
    registry.add("it", files("a"), "1.0.0")
    with pytest.raises(InputError, match="metrics"):
        registry.evaluate("it@1.0.0", metrics)
    assert registry.get("it@1.0.0").state == "pending"


def test_lineage_and_bases(registry, files):
    registry.add("base", files("a"), "1.0.0", evaluations={"m": 1})
    registry.promote("base@1.0.0")
    made = registry.add("it", files("b"), "1.0.0", kind="adapter", base="registry:base@production")
    assert made.base == "registry:base@1.0.0" and made.parents == ("base@1.0.0",)
    registry.add("it", files("c"), "1.1.0", kind="adapter", base="registry:base", parents=["it@1.0.0"])
    line = registry.lineage("it@1.1.0")
    assert {(d, role, v.reference) for d, role, v in line.ancestors} == {
        (1, "base", "base@1.0.0"),
        (1, "parent", "it@1.0.0"),
    }
    assert [v.reference for _, _, v in registry.lineage("base").descendants] == ["it@1.0.0", "it@1.1.0"]
    registry.add("base", files("d"), "1.1.0", evaluations={"m": 1})
    registry.promote("base@1.1.0")
    assert registry.get("it@1.1.0").base == "registry:base@1.0.0"  # an alias that moves does not move a base
    with pytest.raises(InvalidTransitionError, match="base of it@1"):
        registry.mark("base@1.0.0", "archived")
    for wrong in ({"kind": "adapter"}, {"base": "registry:base"}, {"parents": ["nobody@1.0.0"]}):
        with pytest.raises(WeftError):
            registry.add("other", files("e"), "1.0.0", **wrong)
    assert not list((registry.folder / "staging").glob("*"))


def test_events_cannot_be_changed_or_removed(registry, files):
    registry.add("it", files("a"), "1.0.0")
    before = registry.events()
    outside = sqlite3.connect(registry.folder / "registry.db")
    for change in ("UPDATE events SET action = 'nothing'", "DELETE FROM events"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            outside.execute(change)
    outside.close()
    assert registry.events() == before and before[-1].action == "added"


def test_gc_removes_only_what_no_version_needs(registry, files):
    three(registry, files)
    registry.promote("it@1.0.0")
    registry.mark("it@1.1.0", "archived")
    left = registry.folder / "staging" / "of a killed process"
    left.mkdir()
    (left / "half").write_text("half a file")
    (registry.folder / "trees" / "nobody's").mkdir()
    would = registry.gc(dry_run=True)
    assert len(would.paths) == 3 and not would.removed and left.exists()
    assert set(registry.gc().paths) == set(would.paths) and not left.exists()
    assert registry.gc().paths == ()
    for version in ("1.0.0", "1.2.0"):
        registry.path(f"it@{version}")
    registry.add("it", files("1"), "1.3.0")  # the same files as the archived version had
    assert registry.gc().paths == () and registry.path("it@1.3.0")


def test_gc_leaves_the_work_of_living_processes(registry, files):
    with registry.database.writing():
        place = registry.objects.begin()
    with registry.objects.staged(place, files("a"), link=False, tell=lambda count: None) as staged:
        assert registry.gc().paths == () and (staged.folder / "inner" / "weights").exists()


def test_other_files_are_not_a_registry(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "registry.db").write_text("not a database, but long enough to be taken for one" * 100)
    with pytest.raises(RegistryError, match=r"not a registry|cannot be used"):
        Registry(tmp_path / "text")
    (tmp_path / "other").mkdir()
    other = sqlite3.connect(tmp_path / "other" / "registry.db")
    other.execute("CREATE TABLE notes (text)")
    other.commit()
    with pytest.raises(RegistryError, match="another program"):
        Registry(tmp_path / "other")
    with Registry(tmp_path / "new") as newer:
        newer.database._connected().execute("PRAGMA user_version = 99")
    with pytest.raises(RegistryError, match="format 99"):
        Registry(tmp_path / "new")


def test_a_forked_process_uses_a_connection_of_its_own(registry, files):
    registry.add("it", files("a"), "1.0.0")
    child = os.fork()
    if not child:
        try:
            registry.evaluate("it@1.0.0", {"m": 1})
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert registry.get("it@1.0.0").evaluations[0].value == 1.0


def test_empty_folders_and_missing_files_are_refused(registry, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no files"):
        registry.add("it", tmp_path / "empty", "1.0.0")
    with pytest.raises(NotFoundError, match="no such file"):
        registry.add("it", Path("/nowhere/at all"), "1.0.0")


def test_a_registry_made_between_two_statements_is_not_taken_for_another_programs(tmp_path, monkeypatch):
    """Another process makes its tables after the first question about the file and before the last."""
    path = tmp_path / "registry.db"
    monkeypatch.setattr(database, "WAIT_S", 0.0)
    reader = sqlite3.connect(path, isolation_level=None)

    def meanwhile(statement: str) -> None:
        if statement == "PRAGMA user_version":
            writer = sqlite3.connect(path, timeout=0, isolation_level=None)
            with suppress(sqlite3.OperationalError):  # the reader's lock holds it off
                database._ensure_schema(writer, path)
            writer.close()

    reader.set_trace_callback(meanwhile)
    assert database._format(reader, path) in (0, database.FORMAT)
    reader.close()
