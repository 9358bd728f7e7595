"""weft chat: a conversation in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli import answer, asked, options, screen
from weft.cli.conversation import Conversation, with_images
from weft.cli.conversation import images as image_option
from weft.cli.typed import Typed
from weft.errors import WeftError

if TYPE_CHECKING:
    from weft.generate import Generation, Model

HELP = """\
/reset          start a new conversation; the system prompt stays
/system TEXT    set the system prompt (without a text: remove it)
/save FILE      write the conversation to a JSON file
/load FILE      continue a saved conversation
/image FILE     show the model a picture with the next message
/stats          tokens, speed, context, sampling settings
/quit           leave (also Ctrl-D)
End a line with \\ or use ``` fences to write a message of several lines. Start a message with // to send a leading /.
Ctrl-C interrupts an answer."""


@click.command(cls=options.Grouped)
@click.argument("model", default=options.DEFAULT_GENERATOR)
@click.option("--system", help="The system prompt.")
@image_option()
@options.variables()
@click.option("--resume", metavar="FILE", help="Continue the conversation in this file, and save it there at the end.")
@options.sampling(max_tokens=1024, defaults="the model's own, see `weft show`; else 0.7 with --top-p 0.9")
@options.shape()
@options.engine()
@options.loading()
def command(
    model: str,
    system: str | None,
    images: tuple[Path, ...],
    resume: str | None,
    variables: dict[str, Any],
    **settings: Any,
) -> None:
    """Chat with a model (default: smollm2-135m-instruct).

    Answers are printed as they are generated. /help lists the commands of the chat: /reset /system /save /load /image
    /stats /quit. Each turn reuses the KV cache of the conversation so far. When the conversation outgrows the context,
    the oldest question and answer are dropped, and the chat says so. With --image, a model that sees (SmolVLM) reads
    pictures with the first message.

    Sampling settings that are not given are those of the model's makers: from generation_config.json in its folder, or
    from the catalogue; else temperature 0.7 and top-p 0.9. `weft show MODEL` prints them.

    \b
    Examples:
      weft chat
      weft chat ./model.gguf --system "Answer in one sentence." --temperature 0.2
      weft chat qwen3-0.6b --set enable_thinking=false
      weft chat --resume notes.json --prefix-dir ~/.cache/weft/prefixes
      weft chat --adapter ./my-lora --schema reply.schema.json
      weft chat --sampling frequency_penalty=0.5 --sampling min_tokens=20
      weft chat ./SmolVLM-256M-Instruct --image photo.jpg
      echo "What is a loom?" | weft chat
    """
    settings["grammar"] = asked.grammar(settings)
    settings = asked.sampling(settings)
    kept = None if resume is None else Path(resume).expanduser()
    conversation = Conversation.load(kept) if kept is not None and kept.exists() else Conversation()
    conversation.system = system or conversation.system
    import weft

    loaded = weft.load(model, **{name: settings.pop(name) for name in options.LOADING})
    asked.prepare(loaded, settings)
    chat = Chat(loaded, conversation, variables, {**loaded.defaults.options, **settings})
    for image in images:
        chat.show(image)
    if chat.typed.watched:
        info = loaded.info
        screen.note(f"{model}: {info['context']} tokens of context, {info['threads']} threads. /help lists commands.")
        screen.note(f"sampling   {chat.sampling()}")
    try:
        chat.run()
    finally:
        if kept is not None and chat.conversation.turns:
            chat.conversation.save(kept)
        loaded.engine.close()


class Chat:
    """The loop: read a message, run it as a command or answer it. An error ends the turn, not the chat."""

    def __init__(
        self, model: Model, conversation: Conversation, variables: dict[str, Any], settings: dict[str, Any]
    ) -> None:
        assert model.chat_template  # raises an error if the model has none, before the first question
        self.model = model
        self.conversation = conversation
        self.variables = variables
        self.settings = settings
        self.typed = Typed()
        self.results: list[Generation] = []
        self.images: list[Path] = []  # for the next message

    def show(self, image: Path) -> None:
        """Have a picture in the next message; an error if it cannot be read, or the model does not see."""
        self.model.prepare_images([image], progress=None)
        self.images.append(image)

    def run(self) -> None:
        while True:
            try:
                message = self.typed.message()
            except KeyboardInterrupt:
                if not self.typed.watched:
                    raise
                screen.note("\n(/quit or Ctrl-D leaves)")
                continue
            if message is None:
                return
            try:
                if not self._handle(message):
                    return
            except (WeftError, OSError) as error:
                if isinstance(error, BrokenPipeError):
                    raise
                click.echo(f"weft: {error}", err=True)

    def _handle(self, message: str) -> bool:
        """Run a command or answer a message; False to leave."""
        if message.startswith("//"):
            self._answer(message[1:])
        elif message.startswith("/"):
            return self._command(*message.partition(" ")[::2])
        elif message.strip():
            self._answer(message)
        return True

    def _answer(self, message: str) -> None:
        from weft.generate import make_request

        self.conversation.say("user", with_images(message, self.images))
        said = ""
        try:
            handle = self.model.engine.submit(make_request(self._fitting_ids(), **self.settings))
            answer.write(handle)
            result = handle.result()
            said = result.text
        finally:
            if said:
                self.images = []
                self.conversation.say("assistant", said)
            else:
                self.conversation.take_back()  # the next prompt must not hold a question without its answer
        click.echo()
        self.results.append(result)
        screen.note(f"[{answer.timings(result)}]")

    def _fitting_ids(self) -> list[int]:
        """The conversation as ids; its oldest exchanges are dropped until there is room for an answer."""
        context = self.model.info["context"]
        room = min(self.settings["max_tokens"], context // 4)
        ids = self._ids()
        while len(ids) + room > context and self.conversation.forget():
            screen.note("(the conversation has outgrown the context: the oldest question and answer are dropped)")
            ids = self._ids()
        return ids

    def _ids(self) -> list[int]:
        return self.model.chat_ids(self.conversation.messages, variables=self.variables)

    def _command(self, name: str, text: str) -> bool:
        text = text.strip()
        if name in ("/save", "/load", "/image") and not text:
            screen.note(f"{name} needs a file name")
        elif name == "/quit":
            return False
        elif name == "/help":
            screen.note(HELP)
        elif name == "/reset":
            self.conversation.reset()
            screen.note("new conversation")
        elif name == "/system":
            self.conversation.system = text or None
            screen.note("system prompt set" if text else "system prompt removed")
        elif name == "/save":
            self.conversation.save(Path(text).expanduser())
            screen.note(f"{len(self.conversation.messages)} messages saved to {text}")
        elif name == "/load":
            self.conversation = Conversation.load(Path(text).expanduser())
            screen.note(f"{len(self.conversation.messages)} messages loaded from {text}")
        elif name == "/image":
            self.show(Path(text).expanduser())
            screen.note(f"{text} goes with the next message")
        elif name == "/stats":
            self._print_stats()
        else:
            screen.note(f"unknown command {name}; /help lists the commands")
        return True

    def sampling(self) -> str:
        """The settings in use, and the defaults where they differ: temperature 0.2, top_p 0.9 (the catalogue)."""
        from weft.weights.sources import catalog

        used = {name: self.settings[name] for name in catalog.SAMPLING if name in self.settings}
        own = self.model.defaults
        if used == dict(own.options):
            return str(own)
        return f"{', '.join(f'{name} {value:g}' for name, value in used.items())}; defaults: {own}"

    def _print_stats(self) -> None:
        info = self.model.info
        turns = self.conversation.turns
        used = len(self._ids()) if turns else 0
        made = sum(r.usage.completion_tokens for r in self.results)
        after_first = sum(max(r.usage.completion_tokens - 1, 0) for r in self.results)
        seconds = sum(r.timings.predicted_ms for r in self.results) / 1000
        screen.note(f"model      {info['model']}: {info['model_type']}, {info['compute']}, {info['level']}")
        screen.note(f"context    {used} of {info['context']} tokens, {len(turns)} messages")
        screen.note(f"sampling   {self.sampling()}")
        screen.note(f"answers    {len(self.results)}, {made} tokens, {after_first / max(seconds, 1e-9):.1f} tok/s")
        if self.results:
            screen.note(f"last one   {answer.timings(self.results[-1])}")
