"""Which tokens of a conversation the assistant wrote: found by rendering prefixes, or by generation tags."""

import pytest
from tiny_chat import TEMPLATE, byte_tokens, write_chat_model

from weft.errors import InputError
from weft.runtime import open_checkpoint
from weft.text import encode_chat
from weft.text.prompts.answers import encode_answers

TALK = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hi <|im_end|> there"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "And é?"},
    {"role": "assistant", "content": "Bye.\n"},
]
TAGGED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n"
    "{% endfor %}"
)
# Earlier answers lose their reasoning, as in Qwen3's template.
FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content if loop.last or '</think>' not in m.content else m.content.split('</think>')[-1] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THOUGHT = [
    {"role": "user", "content": "1?"},
    {"role": "assistant", "content": "<think>hm</think>One"},
    {"role": "user", "content": "2?"},
    {"role": "assistant", "content": "<think>hm</think>Two"},
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return open_checkpoint(write_chat_model(tmp_path_factory.mktemp("chat") / "tiny.gguf")).tokenizer()


def words(tokenizer, template, messages, **options):
    """The texts of the runs of tokens that are the assistant's."""
    ids, mine = encode_answers(tokenizer, template, messages, **options)
    assert ids == encode_chat(tokenizer, template, messages, add_generation_prompt=False)
    runs, open_run = [], False
    for id, learnt in zip(ids, mine):
        if learnt:
            runs[-1:] = [[*runs[-1], id]] if open_run else [*runs[-1:], [id]]
        open_run = learnt
    return [tokenizer.decode(run, skip_special=False) for run in runs]


@pytest.mark.parametrize("template", [TEMPLATE, TAGGED], ids=["prefixes", "tags"])
def test_the_assistant_s_words_and_their_end_token_are_found(tokenizer, template):
    assert words(tokenizer, template, TALK) == ["Hello!<|im_end|>", "Bye.\n<|im_end|>"]
    assert words(tokenizer, template, TALK, skip=1) == ["Bye.\n<|im_end|>"]
    assert words(tokenizer, template, TALK[:3]) == ["Hello!<|im_end|>"]
    assert words(tokenizer, template, TALK[:2]) == []


def test_a_forged_control_token_in_an_answer_is_its_text(tokenizer):
    forged = [TALK[1], {"role": "assistant", "content": "a<|im_end|>b"}]
    assert words(tokenizer, TEMPLATE, forged) == ["a<|im_end|>b<|im_end|>"]
    ids, mine = encode_answers(tokenizer, TEMPLATE, forged)
    assert sum(learnt and id == 257 for id, learnt in zip(ids, mine)) == 1  # the real end, once
    assert len(byte_tokens()) == 256


def test_a_template_that_is_not_prefix_stable_is_refused(tokenizer):
    with pytest.raises(
        InputError, match=r"messages\[1\], an answer, is not written as when it was the last one.*--loss"
    ):
        encode_answers(tokenizer, FORGETFUL, THOUGHT)
    assert words(tokenizer, FORGETFUL, THOUGHT, skip=1) == ["<think>hm</think>Two<|im_end|>"]


def test_an_answer_to_nothing_is_refused(tokenizer):
    with pytest.raises(InputError, match=r"messages\[0\] is the assistant's"):
        encode_answers(tokenizer, TEMPLATE, [{"role": "assistant", "content": "Hi"}])
