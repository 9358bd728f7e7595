"""Folders are read without what git ignores: the same files as `git ls-files` lists, whatever the patterns are."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from soaking import times

from weft.embed.pipeline.ignoring import Rules, patterns_of
from weft.embed.pipeline.walking import IGNORED, Selection, Walk

GIT = shutil.which("git")
NAMES = [
    "a",
    "b",
    "ab",
    "abc",
    "a b",
    "build",
    "foo",
    "foobar",
    "x.py",
    "x.pyc",
    "é",
    "!a",
    "#a",
    "[a]",
    "a]",
    "-",
    "A1",
]
PIECES = [
    *("a", "b", "ab", "abc", "build", "foo", "bar", "x.py", "é", "A1", " ", "!", "#", "-", "]"),
    *(
        "*",
        "**",
        "***",
        "?",
        "/",
        "//",
        "\\",
        "\\ ",
        "\\*",
        "\\!",
        "\\#",
        "[",
        "[a]",
        "[!a]",
        "[^b]",
        "[a-c]",
        "[]-a]",
        "[a",
    ),
    *(
        "[[:alpha:]]",
        "[[:digit:]b]",
        "[[:nope:]]",
        "[[:x]",
        "[\\]]",
        "[a\\-c]",
        "[--a]",
        "*.py",
        "*.py[co]",
        "a**",
        "**/",
        "/**",
        "/**/",
    ),
]
FIXED = [
    "*.pyc\n!x.pyc\n",
    "build/\n",
    "/build\n",
    "foo/bar/\n",
    "foo**/bar\n",
    "a/**/b\n",
    "a/**\n!a/b\n",
    "**/b/**\n",
    "**\n!a\n!a/\n!a/**\n",
    "a \nb\\ \n# no\n\\#a\n\\!a\n!\n/\n",
    "\ufeffabc\r\nx.py\r\n",
    "*\\**\n",
    "[[:upper:]][0-9]\n",
    "*a*b*c*\n",
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    draw = random.Random(4)
    for _ in range(220):
        path = root.joinpath(*draw.choices(NAMES, k=draw.randint(1, 4)))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.write_text("x")
        except (FileExistsError, NotADirectoryError):
            pass  # one of its folders is a file already
    return root


def git(root: Path, *arguments: str) -> bytes:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(root)}
    return subprocess.run([str(GIT), "-C", str(root), *arguments], env=env, check=True, capture_output=True).stdout


def listed_by_git(root: Path) -> set[str]:
    found = git(root, "ls-files", "--others", "--exclude-standard", "-z").split(b"\0")
    return {os.fsdecode(name) for name in found if name and not name.rpartition(b"/")[2].startswith(b".")}


def walked(root: Path) -> set[str]:
    walk = Walk(root.resolve(), Selection(), set())
    return {str(path.relative_to(root.resolve())) for path in walk.files}


def some_rules(draw: random.Random) -> str:
    lines = ["".join(draw.choices(PIECES, k=draw.randint(1, 5))) for _ in range(draw.randint(1, 5))]
    return "".join(("!" if draw.random() < 0.25 else "") + line + "\n" for line in lines)


@pytest.mark.soak
@pytest.mark.skipif(GIT is None, reason="git is not installed")
def test_the_files_are_those_that_git_does_not_ignore(tree: Path) -> None:
    git(tree, "init", "-q")
    draw = random.Random(7)
    folders = [tree, *(path for path in sorted(tree.rglob("*")) if path.is_dir() and ".git" not in path.parts)]
    every = [*FIXED, *(some_rules(draw) for _ in range(times(800, 60)))]
    for rules in every:
        placed = {tree / ".gitignore": rules}
        if draw.random() < 0.5:
            placed[draw.choice(folders) / ".gitignore"] = some_rules(draw)
        if draw.random() < 0.2:
            placed[tree / ".git" / "info" / "exclude"] = some_rules(draw)
        for place, text in placed.items():
            place.parent.mkdir(exist_ok=True)
            place.write_text(text, encoding="utf-8", newline="")
        assert walked(tree) == listed_by_git(tree), {str(p.relative_to(tree)): t for p, t in placed.items()}
        for place in placed:
            place.unlink()


@pytest.mark.skipif(GIT is None, reason="git is not installed")
def test_rules_of_the_repository_above_hold_and_those_of_another_do_not(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    docs = tmp_path / "docs"
    inner = docs / "inner"
    inner.mkdir(parents=True)
    (tmp_path / ".gitignore").write_text("*.log\n/docs/private.txt\nlocal/\n")
    for name in ("a.log", "private.txt", "kept.txt", "inner/b.log", "inner/kept.txt"):
        (docs / name).write_text("x")
    assert walked(docs) == {"kept.txt", "inner/kept.txt"}
    git(inner, "init", "-q")
    assert walked(docs) == {"kept.txt", "inner/kept.txt", "inner/b.log"}


def test_a_hostile_pattern_ends() -> None:
    """With backtracking it would take longer than the test may."""
    rules = Rules(b"/r", tuple(patterns_of(b"*a" * 200 + b"b\n" + b"**/a*/" * 50 + b"c\n")), None)
    assert not rules.ignore(b"/r/" + b"a" * 4000, False)
    assert not rules.ignore(b"/r/" + b"aa/" * 500 + b"d", False)


def test_what_programs_fill_is_left_out_and_read_with_all_files(tmp_path: Path) -> None:
    names = {
        "notes.txt": None,
        ".git/config": ("hidden", ".git"),
        ".env": ("hidden", ".env"),
        "__pycache__/m.txt": ("compiled Python", "__pycache__"),
        "node_modules/p/readme.md": ("third-party packages", "node_modules"),
        "env/lib/a.txt": ("a virtual environment", "env"),
        "out/log.txt": (IGNORED, "out"),
    }
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    (tmp_path / "env" / "pyvenv.cfg").write_text("home = /usr")
    (tmp_path / ".gitignore").write_text("out/\n")
    root = tmp_path.resolve()
    walk = Walk(root, Selection(), set())
    assert [path.name for path in walk.files] == ["notes.txt"]
    expected = {said[1]: said[0] for said in names.values() if said} | {".gitignore": "hidden"}
    assert {str(path.relative_to(root)): why for path, why in walk.left_out.items()} == expected
    every = Walk(root, Selection(all_files=True), set())
    assert {str(path.relative_to(root)) for path in every.files} == {*names, "env/pyvenv.cfg", ".gitignore"}
    assert every.left_out == {}
