"""Flags are parsed when they are asked for, and a value that does not parse is an error that names its variable."""

import subprocess
import sys
from pathlib import Path

import pytest

from weft import flags
from weft.errors import InputError


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for flag in flags.all_flags():
        monkeypatch.delenv(flag.name, raising=False)


def test_without_variables_every_flag_has_its_default() -> None:
    for flag in flags.all_flags():
        assert flags.get(flag.name) == flag.default and not flag.given


def test_every_flag_has_a_sentence_and_a_name_of_its_own() -> None:
    names = [flag.name for flag in flags.all_flags()]
    assert len(set(names)) == len(names)
    assert all(flag.sentence.endswith(".") and flag.kind in flags.PARSERS for flag in flags.all_flags())


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("WEFT_OFFLINE", "YES", True),
        ("WEFT_OFFLINE", "off", False),
        ("WEFT_OFFLINE", "", False),
        ("WEFT_THREADS", " 8 ", 8),
        ("WEFT_THREADS", "", None),
        ("WEFT_WATCH", "attn_out, mlp_out,", ("attn_out", "mlp_out")),
        ("WEFT_ISA", "avx2", "avx2"),
        ("WEFT_CACHE", "/x/y", Path("/x/y")),
        ("HF_ENDPOINT", "http://mirror/", "http://mirror"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "2.5", 2.5),
        ("NO_COLOR", "0", True),
        ("NO_COLOR", "", False),
    ],
)
def test_values_are_read_when_asked_for(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object) -> None:
    monkeypatch.setenv(name, text)
    assert flags.get(name) == value


@pytest.mark.parametrize(
    "name, text",
    [
        ("WEFT_OFFLINE", "perhaps"),
        ("WEFT_THREADS", "many"),
        ("WEFT_THREADS", "0"),
        ("WEFT_THREADS", "1.5"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "nan"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "-1"),
        ("HF_ENDPOINT", "file:///etc"),
    ],
)
def test_an_unparsable_value_names_its_variable(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(InputError, match=name):
        flags.get(name)


def test_the_home_folder_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("HF_HOME", "~/hf")
    assert flags.get("HF_HOME") == Path("/home/someone/hf")


def test_a_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert "hf_secret" not in " ".join(flag.shown() for flag in flags.all_flags())


def test_a_name_outside_the_table_is_our_bug() -> None:
    with pytest.raises(KeyError):
        flags.get("WEFT_NO_SUCH_FLAG")


def test_importing_reads_nothing() -> None:
    """A broken value hurts whoever asks for it, not every program that imports weft."""
    code = "import os; os.environ['WEFT_THREADS'] = 'broken'; import weft.flags, weft.weights.sources"
    subprocess.run([sys.executable, "-c", code], check=True)
