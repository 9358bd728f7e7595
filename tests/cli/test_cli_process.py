"""As a process: a quick start, a clean end on Ctrl-C and on a broken pipe, no colours where none are wanted."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import COMMAND, environment, start

pty = pytest.importorskip("pty", reason="needs a Unix terminal")

HEAVY = ("numpy", "rich", "jinja2", "weft._core", "ssl", "asyncio")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from weft.cli.app import app\n"
        "try: app.main(['--help'], prog_name='weft')\n"
        f"finally: print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


ENDLESS = ("--max-tokens", "4000", "--sampling", "ignore_eos=true", "--temperature", "1")


def test_ctrl_c_keeps_what_was_made_and_exits_130(generator: Path) -> None:
    process = start("generate", "a", "-m", str(generator), *ENDLESS)
    assert process.stdout and process.stderr
    made = process.stdout.read(1)  # the model is loaded and answers
    process.send_signal(signal.SIGINT)
    made += process.stdout.read()
    said = process.stderr.read().decode()
    assert process.wait(timeout=60) == 130
    assert made.endswith(b"\n") and "interrupted" in said and "Traceback" not in said


def test_ctrl_c_while_loading_exits_130(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "texts")  # whoever reads it waits for a writer
    process = start("embed", "--input", str(tmp_path / "texts"))
    writer = os.open(tmp_path / "texts", os.O_WRONLY)  # returns once the command has opened the other end
    process.send_signal(signal.SIGINT)
    assert process.stdout and process.stderr
    assert process.stdout.read() == b"" and b"Traceback" not in process.stderr.read()
    assert process.wait(timeout=60) == 130
    os.close(writer)


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_the_rows_that_are_embedded(embedder: Path, tmp_path: Path, number: int, code: int) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.npy"
    source.write_text("".join(f"the cat {i} sat on the mat\n" for i in range(12_000)))
    arguments = ("embed", "-m", str(embedder), "--input", str(source), "--threads", "1", "--output")
    process = start(*arguments, str(target))
    assert process.stderr
    state = tmp_path / "out.npy.part" / "state.json"
    while not state.exists() or json.loads(state.read_bytes())["rows"] == 0:
        assert not select.select([process.stderr], [], [], 0.01)[0], process.stderr.read()
    process.send_signal(number)
    said = process.stderr.read().decode()
    assert process.wait(timeout=60) == code and "run the same command again" in said and "Traceback" not in said
    done = json.loads(state.read_bytes())["rows"]
    assert 0 < done < 12_000 and not target.exists()
    for name in ("out", "whole"):
        again = start(*arguments, str(tmp_path / f"{name}.npy"))
        assert again.stderr
        said = again.stderr.read().decode()
        assert again.wait(timeout=60) == 0 and (f"{done} from a stopped run" in said) == (name == "out")
    assert target.read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_an_index_that_was_ended_with_sigterm_goes_on(embedder: Path, tmp_path: Path) -> None:
    source, state = tmp_path / "in.txt", tmp_path / "out.index.part" / "state.json"
    source.write_text("".join(f"the cat {i} sat on the mat\n" for i in range(12_000)))
    arguments = ("index", "build", str(source), "-m", str(embedder), "--threads", "1")
    process = start(*arguments, "--output", str(tmp_path / "out.index"))
    assert process.stderr
    while not state.exists() or json.loads(state.read_bytes())["rows"] == 0:
        assert not select.select([process.stderr], [], [], 0.01)[0], process.stderr.read()
    process.terminate()
    assert b"run the same command again" in process.stderr.read() and process.wait(timeout=60) == 143
    assert 0 < json.loads(state.read_bytes())["rows"] < 12_000


def test_ctrl_c_interrupts_an_answer_and_keeps_the_chat(generator: Path, tmp_path: Path) -> None:
    process = start("chat", str(generator), *ENDLESS, stdin=subprocess.PIPE)
    assert process.stdin and process.stdout and process.stderr
    process.stdin.write(b"hello\n")
    process.stdin.flush()
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    process.stdin.write(f"/stats\n/save {tmp_path / 'chat.json'}\n".encode())
    process.stdin.close()
    process.stdout.read()
    said = process.stderr.read().decode()
    assert process.wait(timeout=60) == 0
    assert "interrupted" in said and "answers    1" in said
    assert [m["role"] for m in json.loads((tmp_path / "chat.json").read_text())] == ["user", "assistant"]


def test_a_reader_that_leaves_ends_the_command_quietly(generator: Path) -> None:
    process = start("inspect", str(generator), "--metadata")
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 141


def _on_a_terminal(arguments: list[str], keys: list[bytes], variables: dict[str, str]) -> tuple[int, str]:
    """Run the command on a pseudo-terminal and type one of `keys` at each prompt; its exit code and what it showed."""
    ours, theirs = pty.openpty()
    settings = {**environment(), "TERM": "xterm-256color", "COLUMNS": "100", **variables}
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=settings, start_new_session=True
    )
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            chunk = os.read(ours, 4096)
        except OSError:  # the other end is closed: Linux says so with an error
            break
        if not chunk:
            break
        shown += chunk
        if keys and shown.endswith(b"> "):
            os.write(ours, keys.pop(0))
    os.close(ours)
    return process.wait(timeout=60), shown.decode(errors="replace")


def test_colours_are_for_terminals_that_want_them(generator: Path) -> None:
    assert "\x1b[" in _on_a_terminal(["inspect", str(generator)], [], {})[1]
    assert "\x1b[" not in _on_a_terminal(["inspect", str(generator)], [], {"NO_COLOR": "1"})[1]


def test_a_chat_on_a_terminal_prompts_and_leaves_at_ctrl_d(generator: Path) -> None:
    code, shown = _on_a_terminal(["chat", str(generator), "--max-tokens", "3"], [b"hello\n", b"/stats\n", b"\x04"], {})
    assert code == 0
    assert "/help lists commands" in shown and "generated" in shown and "answers    1" in shown
