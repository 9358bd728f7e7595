"""Fill-in-the-middle prompts: a prefix and a suffix become the prompt of the text between them.

    <fim_prefix> prefix <fim_suffix> suffix <fim_middle>          Qwen, StarCoder, Granite, DeepSeek, Code Llama, GLM

Other files come before it where the model has tokens for them, as in Qwen's repository format:

    <repo_name> name \\n <file_sep> file name \\n text ... <file_sep> file name \\n <fim_prefix> ...
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from weft.errors import UnsupportedError
from weft.frozen import frozen
from weft.text.chat import encode_inside
from weft.text.tokenizer import Tokenizer

# Names that models give to these tokens, for files that do not state the ids.
_NAMES: dict[str, tuple[str, ...]] = {
    "prefix": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
    ),
    "suffix": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
    ),
    "middle": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
    ),
    "pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>"),
    "repo": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<reponame>"),
    "file": ("<|file_sep|>", "<file_sep>"),
}
# Tokens that end a filled-in text besides the model's own; a chat model's own end token is often another one.
_ENDS = ("<|endoftext|>", "<EOT>", "▁<EOT>", "<|cursor|>")
_REPOSITORY, _FILE = "repository", "file"  # names that stand in where the caller gives none


@frozen
class Snippet:
    """Another file of the same project."""

    text: str
    name: str = _FILE


@frozen
class InfillTokens:
    """The ids of a model's tokens for filling in the middle. `ends` are those that end the text besides eos."""

    prefix: int
    suffix: int
    middle: int
    repo: int | None
    file: int | None
    ends: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> InfillTokens | None:
        """Those of a tokenizer, as its file states them or else by name; None where it has none."""
        ids = {part: _found(tokenizer, part) for part in _NAMES}
        prefix, suffix, middle = ids["prefix"], ids["suffix"], ids["middle"]
        if prefix is None or suffix is None or middle is None:
            return None
        named = (tokenizer.id(name) for name in _ENDS)
        ends = dict.fromkeys(id for id in (ids["pad"], ids["repo"], ids["file"], *named) if id is not None)
        return cls(prefix, suffix, middle, ids["repo"], ids["file"], tuple(ends))


def _found(tokenizer: Tokenizer, part: str) -> int | None:
    if part in tokenizer.stated_infill:
        return tokenizer.stated_infill[part]
    return next((id for name in _NAMES[part] if (id := tokenizer.id(name)) is not None), None)


def infill_tokens(tokenizer: Tokenizer) -> InfillTokens:
    """The model's tokens for filling in the middle; UnsupportedError where it has none."""
    found = InfillTokens.of(tokenizer)
    if found is None:
        raise UnsupportedError(
            "infill",
            "needs a model that can fill in the middle; this one's tokenizer has no prefix, suffix and middle tokens",
            field="suffix",
            advice="use a code model that has them, such as Qwen2.5-Coder",
        )
    return found


def infill_ids(tokenizer: Tokenizer, prefix: str, suffix: str, *, extra: Sequence[Snippet] = ()) -> list[int]:
    """The prompt of the text between `prefix` and `suffix`.

    Special tokens written in the texts are plain text: the texts are somebody's code. `extra` are other files of the
    project; a model without tokens for files reads them one after another, before the prompt.
    """
    tokens = infill_tokens(tokenizer)
    encode = partial(tokenizer.encode, add_special=False)
    inside = partial(encode_inside, encode)
    ids = [tokenizer.bos_id] if tokenizer.bos_id is not None and tokenizer.encode("")[:1] == [tokenizer.bos_id] else []
    if extra and tokens.repo is not None and tokens.file is not None:
        ids += [tokens.repo, *inside(f"{_REPOSITORY}\n")]
    for snippet in extra:
        ids += [tokens.file, *inside(f"{snippet.name}\n")] if tokens.file is not None else []
        ids += inside(snippet.text if tokens.file is not None else f"{snippet.text}\n\n")
    if extra and tokens.file is not None:
        ids += [tokens.file, *inside(f"{_FILE}\n")]
    return [*ids, tokens.prefix, *encode(prefix), tokens.suffix, *inside(suffix), tokens.middle]
