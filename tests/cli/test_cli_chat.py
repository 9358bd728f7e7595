"""weft chat remembers, forgets when it must, obeys its commands, and survives errors."""

import io
import json
from pathlib import Path

import pytest
from running import Run
from tiny_chat import TEMPLATE, write_chat_model
from tiny_chat_folder import write_chat_folder

import weft
from weft.cli.conversation import Conversation
from weft.cli.typed import Typed
from weft.errors import InputError, NotFoundError

GREEDY = ("--temperature", "0", "--max-tokens", "4", "--context", "256")


def test_the_second_answer_knows_the_first(run: Run, generator: Path, tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    result = run(
        "chat", str(generator), *GREEDY, "--system", "be brief", input=f"one\ntwo\n/save {saved}\n/quit\nthree\n"
    )
    assert result.exit_code == 0
    messages = json.loads(saved.read_text(encoding="utf-8"))
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant"]
    model = weft.load(str(generator))
    for end in (2, 4):
        wanted = model.chat(messages[:end], max_tokens=4, temperature=0).text
        assert messages[end]["content"] == wanted and wanted in result.stdout
    assert result.stderr.count("tok/s") == 4  # prompt and answer, twice


def test_a_saved_chat_goes_on_where_it_was(run: Run, generator: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    run("chat", str(generator), *GREEDY, input=f"one\ntwo\n/save {second}\n")
    run("chat", str(generator), *GREEDY, input=f"one\n/save {first}\n")
    run("chat", str(generator), *GREEDY, input=f"/load {first}\ntwo\n/save {first}\n")
    assert first.read_text() == second.read_text()


def test_a_resumed_chat_is_kept_and_reuses_what_was_computed(run: Run, generator: Path, tmp_path: Path) -> None:
    long = "one and " * 8  # more than a page
    kept, whole = tmp_path / "kept.json", tmp_path / "whole.json"
    run("chat", str(generator), *GREEDY, input=f"{long}\ntwo\n/save {whole}\n")
    prefixes = ("--prefix-dir", str(tmp_path / "prefixes"))
    run("chat", str(generator), *GREEDY, *prefixes, "--resume", str(kept), input=f"{long}\n")
    again = run("chat", str(generator), *GREEDY, *prefixes, "--resume", str(kept), input="two\n")
    assert kept.read_text() == whole.read_text()
    assert "cached)" in again.stderr
    limited = run("chat", str(generator), *GREEDY, "--choice", "aye", "--choice", "nay", input="one\n")
    assert limited.stdout.strip() in ("aye", "nay")


def test_commands_change_the_conversation_and_say_so(run: Run, generator: Path, tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    typed = ["one", "/stats", "/reset", "/system be kind", "//slash", f"/save {saved}", "/help", "/nonsense", "/load"]
    result = run("chat", str(generator), *GREEDY, input="\n".join(typed))
    assert [m["content"] for m in json.loads(saved.read_text())][:2] == ["be kind", "/slash"]
    for said in (
        "of 256 tokens, 2 messages",
        "new conversation",
        "/reset  ",
        "unknown command /nonsense",
        "needs a file",
    ):
        assert said in result.stderr


def test_errors_end_the_turn_and_not_the_chat(run: Run, generator: Path, tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    typed = ["/load missing.json", "x" * 300, "short", f"/save {saved}"]
    result = run("chat", str(generator), *GREEDY, input="\n".join(typed))
    assert result.exit_code == 0 and "missing.json does not exist" in result.stderr and "tokens" in result.stderr
    assert json.loads(saved.read_text())[0]["content"] == "short"


def test_a_conversation_that_outgrows_the_context_forgets_its_beginning(
    run: Run, generator: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "chat.json"
    typed = [letter * 60 for letter in "abcd"]
    result = run("chat", str(generator), *GREEDY, "--system", "stay", input="\n".join([*typed, f"/save {saved}"]))
    said = [m["content"] for m in json.loads(saved.read_text()) if m["role"] != "assistant"]
    assert said[0] == "stay" and said[-1] == typed[-1] and typed[0] not in said
    assert "oldest question and answer are dropped" in result.stderr


def test_variables_reach_the_template(run: Run, tmp_path: Path) -> None:
    template = TEMPLATE + "{% if style is defined %}{{ style }}{% endif %}{% if quiet %}!{% endif %}"
    path = write_chat_model(tmp_path / "tiny.gguf", template=template)
    model = weft.load(str(path))
    messages = [{"role": "user", "content": "hi"}]
    plain, set_ids = model.chat_ids(messages), model.chat_ids(messages, variables={"style": "ab", "quiet": True})
    assert model.tokenizer.decode(set_ids[len(plain) :]) == "ab!"
    with pytest.raises(weft.WeftError, match="cannot be set as a template variable"):
        model.chat(messages, variables={"messages": []})
    arguments = ("generate", "--chat", "hi", "-m", str(path), "--max-tokens", "1", "--json")
    longer = json.loads(run(*arguments, "--set", "style=ab", "--set", "quiet=true").stdout)
    assert longer["usage"]["prompt_tokens"] == len(set_ids)
    assert run("generate", "hi", "-m", str(path), "--set", "a=1").exit_code == 2
    assert "NAME=VALUE" in run(*arguments, "--set", "style").stderr


def test_a_model_without_a_template_is_refused_at_once(run: Run, tmp_path: Path) -> None:
    result = run("chat", str(write_chat_model(tmp_path / "raw.gguf", template=None)), input="hello\n")
    assert result.exit_code == 1 and "no chat template" in result.stderr and result.stdout == ""


def test_a_chat_uses_the_settings_of_the_model_s_makers(run: Run, generator: Path, tmp_path: Path) -> None:
    folder = write_chat_folder(tmp_path / "model", {"temperature": 1.5, "top_k": 3})
    own, saved = weft.load(str(folder)), tmp_path / "chat.json"
    messages = [{"role": "user", "content": "hi"}]
    arguments = ("--max-tokens", "8", "--seed", "5")
    said = run("chat", str(folder), *arguments, input=f"hi\n/stats\n/save {saved}\n").stderr
    assert "sampling   temperature 1.5, top_k 3 (generation_config.json)" in said
    wanted = own.generate(own.chat_ids(messages), temperature=1.5, top_k=3, max_tokens=8, seed=5)
    assert json.loads(saved.read_text())[1]["content"] == wanted.text
    said = run("chat", str(folder), *arguments, "--temperature", "0", input="hi\n/stats\n").stderr
    assert "sampling   temperature 0, top_k 3; defaults: temperature 1.5, top_k 3 (generation_config.json)" in said
    said = run("chat", str(generator), *arguments, input="hi\n/stats\n").stderr
    assert "sampling   temperature 0.7, top_p 0.9 (weft's own: the model states none)" in said


@pytest.mark.parametrize(
    "typed, messages",
    [
        ("a\nb\n", ["a", "b"]),
        ("a\\\nb\\\nc\nd", ["a\nb\nc", "d"]),
        ("```\na\n\nb\\\n```\nc\n", ["a\n\nb\\", "c"]),
        ("look: ```py\nx = 1\n```\nc\n", ["look: ```py\nx = 1\n```", "c"]),
        ("use ```x``` here\nc\n", ["use ```x``` here", "c"]),
        ("```\nnever closed", ["```\nnever closed"]),
        ("ends\\", ["ends"]),
        ("", []),
    ],
)
def test_messages_of_several_lines(monkeypatch: pytest.MonkeyPatch, typed: str, messages: list[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed.encode())))
    reader = Typed()
    assert list(iter(reader.message, None)) == messages


@pytest.mark.parametrize("content", ["", "{}", "[1]", '[{"role": "pirate", "content": "a"}]', '[{"role": "user"}]'])
def test_what_is_no_conversation_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "chat.json").write_text(content)
    with pytest.raises(InputError):
        Conversation.load(tmp_path / "chat.json")
    with pytest.raises(NotFoundError):
        Conversation.load(tmp_path / "missing.json")
