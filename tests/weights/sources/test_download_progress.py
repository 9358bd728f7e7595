"""Progress goes to the caller's callback, to a bar where a person is watching, and nowhere otherwise."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

import weft
from weft.weights.sources.progress import Bar, shown, silent


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watch(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error becomes a terminal that remembers; not a fixture, because pytest sets its own for each phase."""
    for name in ("WEFT_NO_PROGRESS", "HF_HUB_DISABLE_PROGRESS_BARS"):
        monkeypatch.delenv(name, raising=False)
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def test_a_callback_is_used_as_it_is() -> None:
    seen: list[str] = []
    with shown(lambda name, done, total: seen.append(name)) as report:
        report("file", 1, 2)
    assert seen == ["file"]


def test_a_bar_names_the_file_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watch(monkeypatch)
    with shown(None) as report:
        assert isinstance(report, Bar)
        report("model.safetensors", 0, 4_000_000)
        report("model.safetensors", 4_000_000, 4_000_000)
    assert "model.safetensors" in terminal.getvalue() and "4.0" in terminal.getvalue()


def test_a_bar_that_is_never_called_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watch(monkeypatch)
    with shown(True):
        pass
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("variable", ["WEFT_NO_PROGRESS", "HF_HUB_DISABLE_PROGRESS_BARS"])
def test_a_variable_switches_bars_off(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    watch(monkeypatch)
    monkeypatch.setenv(variable, "1")
    with shown(None) as report:
        assert report is silent


def test_no_terminal_means_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with shown(None) as report:
        assert report is silent
    with shown(False) as report:
        assert report is silent


def test_finding_a_model_imports_no_network_and_no_terminal_library() -> None:
    """Without site (-S): files of other packages there (.pth) may import anything before weft does."""
    heavy = "{'rich', 'ssl', 'socket', 'urllib.request', 'http.client', 'subprocess', 'zipfile'}"
    paths = [str(Path(weft.__file__).parent.parent), *sys.path]
    code = f"import sys; sys.path[:] = {paths}; from weft.weights.sources import locate; locate; "
    code += f"print(sorted({heavy} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-S", "-c", code], check=True, capture_output=True, text=True)
    assert answer.stdout.strip() == "[]"
