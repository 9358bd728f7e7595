"""The command helps, suggests, and fails with one line and the exit code that says whose fault it was."""

import json
from pathlib import Path

import pytest
from running import Run

import weft
from weft import flags
from weft.cli import reference
from weft.cli.app import COMMANDS, EXIT_CODES, app
from weft.errors import BackendError, DownloadError, FormatError, InputError, MemoryPlanError, NotFoundError


def test_the_files_of_commands_are_the_commands() -> None:
    folder = Path(weft.__file__).parent / "cli" / "commands"
    assert sorted(COMMANDS) == sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_examples_of_itself(run: Run, name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout and f"weft {name}" in result.stdout.split("Examples:")[1]


def test_the_help_lists_every_command_with_a_whole_sentence(run: Run) -> None:
    listed = run("--help").stdout.split("Commands:")[1]
    for name in COMMANDS:
        assert f"\n  {name} " in listed
    assert "..." not in listed


def test_without_a_command_the_help_is_shown(run: Run) -> None:
    result = run()
    assert result.exit_code == 0 and result.stdout == run("--help").stdout


def test_the_version_is_the_package_s(run: Run) -> None:
    assert run("--version").stdout == f"weft {weft.__version__}\n"


def test_an_unknown_command_suggests_the_nearest(run: Run) -> None:
    result = run("lst")
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr == "weft: 'lst' is not a command; did you mean list? (see `weft --help`)\n"
    assert "commands are chat, generate" in run("xyzzy").stderr


def test_a_wrong_option_is_one_line_that_names_the_command_s_help(run: Run) -> None:
    result = run("embed", "--bogus")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1 and "--bogus" in result.stderr and "weft embed --help" in result.stderr


@pytest.mark.parametrize(
    "error, code",
    [
        (InputError("x", "bad\ninput"), 2),
        (NotFoundError("x", "nothing"), 2),
        (FormatError("x", "malformed"), 1),
        (DownloadError("x", "no network"), 1),
        (MemoryPlanError("x", "too large"), 1),
        (BackendError("x", "no kernel"), 1),
        (MemoryError(), 1),
        (PermissionError(13, "Permission denied"), 1),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("oops"), 70),
    ],
)
def test_the_exit_code_says_whose_fault_it_was(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail() -> tuple[flags.Flag, ...]:
        raise error

    monkeypatch.setattr(flags, "all_flags", fail)
    result = run("env")
    assert result.exit_code == code and code in EXIT_CODES
    assert "Traceback" not in result.stderr and result.stderr.count("\n") == 1


def test_debugging_shows_the_traceback_and_the_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DEBUG", "1")
    result = run("inspect", "./nothing.gguf")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr and result.stderr.splitlines()[-1].startswith("weft: ")


def test_the_reference_page_has_every_command_and_every_exit_code() -> None:
    page = reference()
    assert page == reference()
    assert all(f"## weft {name}\n" in page for name in app.list_commands(None))  # type: ignore[arg-type]
    assert all(f"| {code} |" in page for code in EXIT_CODES)
    assert max(map(len, page.splitlines())) <= 100


def test_env_shows_every_flag_and_no_secret(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    monkeypatch.setenv("WEFT_THREADS", "many")
    rows = {row["name"]: row for row in json.loads(run("env", "--json").stdout)}
    assert list(rows) == [flag.name for flag in flags.all_flags()]
    assert rows["HF_TOKEN"]["value"] == "set" and rows["WEFT_OFFLINE"]["value"] == "True"
    assert rows["WEFT_THREADS"]["value"].startswith("invalid: ")
    text = run("env").stdout
    assert "hf_verysecret" not in text and all(flag.sentence in text for flag in flags.all_flags())


def test_every_help_page_has_examples() -> None:
    sections = reference().split("\n## ")[1:-1]  # the last one lists exit codes
    without = [title for section in sections for title in _without_examples(section)]
    assert len(sections) == len(COMMANDS) and not without


def _without_examples(section: str) -> list[str]:
    """The titles of a command's page, and of its subcommands', that show no example."""
    pages = section.split("\n### ")
    return [page.partition("\n")[0] for page in pages if "\n  Example" not in page]
