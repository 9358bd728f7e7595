"""The conversations that make_chat.py renders with transformers and test_chat_templates.py with weft."""

from datetime import datetime
from typing import Any

NOW = datetime(2026, 3, 9, 7, 5, 4)

# What tokenizer_config.json gives each template beside the messages.
TOKENS = {
    "gemma3": {"bos_token": "<bos>", "eos_token": "<eos>"},
    "llama3.2": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "mistral": {"bos_token": "<s>", "eos_token": "</s>"},
    "mistral-nemo": {"bos_token": "<s>", "eos_token": "</s>"},
    "phi3": {"bos_token": "<s>", "eos_token": "<|endoftext|>"},
    "qwen2.5": {"eos_token": "<|im_end|>"},
    "qwen3": {"eos_token": "<|im_end|>"},
    "smollm2": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
    "tinyllama": {"bos_token": "<s>", "eos_token": "</s>"},
}


def said(*turns: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in turns]


WEATHER = {
    "type": "function",
    "function": {
        "name": "wetter_für",
        "description": 'The <b>weather</b> & "more" — it\'s 天気 \\ / \u2028 🌦',
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "São Paulo, 東京 …"},
                "when": {"type": "object", "properties": {"day": {"type": "integer", "enum": [0, 1, -2]}}},
                "scale": {"type": "number", "default": 1.5e-7, "examples": [1e22, 0.1, None, True]},
            },
            "required": ["place"],
        },
    },
}
NO_ARGUMENTS = {"type": "function", "function": {"name": "now", "description": "", "parameters": {}}}
CALL = {
    "type": "function",
    "id": "abcdef123",
    "function": {"name": "wetter_für", "arguments": {"place": "Zürich <&>", "when": {"day": 1}}},
}
SECOND_CALL = {"type": "function", "id": "ghijkl456", "function": {"name": "now", "arguments": {}}}
TALK = [("system", "Be brief."), ("user", "Hi!"), ("assistant", "Hello. How can I help?"), ("user", "Name a colour.")]
ASKED = said(("system", "Use tools."), ("user", "Weather in Zürich?"))
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
ANSWERED = {"role": "tool", "name": "wetter_für", "tool_call_id": "abcdef123", "content": '{"t": 21, "sky": "☀"}'}
THOUGHT = {"role": "assistant", "content": "It is 4.", "reasoning_content": "\nTwo and two\n"}
PARTS = [{"type": "text", "text": " One "}, {"type": "text", "text": "two.\n"}]

CASES: dict[str, dict[str, Any]] = {
    "user": {"messages": said(("user", "Hi!"))},
    "system alone": {"messages": said(("system", "Be brief."))},
    "system and user": {"messages": said(*TALK[:2])},
    "several turns": {"messages": said(*TALK)},
    "no generation prompt": {"messages": said(*TALK[:3]), "arguments": {"add_generation_prompt": False}},
    "generation prompt after an answer": {"messages": said(*TALK[:3])},
    "two users in a row": {"messages": said(("user", "One"), ("user", "Two"))},
    "an answer first": {"messages": said(("assistant", "Well?"), ("user", "Yes"))},
    "unicode": {
        "messages": said(
            ("system", "Réponds en français — «\u00a0toujours\u00a0»."),
            (
                "user",
                "שלום עולם \u202bعربي\u202c e\u0301 \U0001f468\u200d\U0001f469\u200d\U0001f467 𝒳 \x00\x07\u2028\ufeff",
            ),
            ("assistant", "नमस्ते 🙏🏽"),
            ("user", "日本語\r\nと\t中文"),
        )
    },
    "empty content": {"messages": said(("system", ""), ("user", ""), ("assistant", ""), ("user", ""))},
    "white space": {"messages": said(("system", " \n "), ("user", "\n\n a \t\n"), ("assistant", "  "), ("user", " "))},
    "no content": {
        "messages": [*said(("user", "Hi!")), {"role": "assistant", "content": None}, *said(("user", "Well?"))]
    },
    "control tokens": {
        "messages": said(
            ("system", "<|im_end|>\n<|im_start|>user"),
            ("user", "<|eot_id|><end_of_turn></s>[/INST]<|end|><|begin_of_text|>"),
            ("assistant", "<think>a</think>b<tool_call>{}</tool_call>"),
            ("user", "<tool_response>x</tool_response>"),
        )
    },
    "template code": {"messages": said(("user", "{{ 7 * 7 }} {% raw %} {# x #} ${y} %s {0}"))},
    "tools": {"messages": ASKED, "arguments": {"tools": [WEATHER, NO_ARGUMENTS]}},
    "tools without system": {"messages": ASKED[1:], "arguments": {"tools": [WEATHER]}},
    "no tools": {"messages": ASKED, "arguments": {"tools": []}},
    "a call": {"messages": [*ASKED, CALLED], "arguments": {"tools": [WEATHER], "add_generation_prompt": False}},
    "a call and its result": {"messages": [*ASKED, CALLED, ANSWERED], "arguments": {"tools": [WEATHER]}},
    "an answer after a call": {
        "messages": [*ASKED, CALLED, ANSWERED, *said(("assistant", "21 °C."), ("user", "Thanks"))],
        "arguments": {"tools": [WEATHER, NO_ARGUMENTS]},
    },
    "two calls": {
        "messages": [
            *ASKED,
            {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL, SECOND_CALL]},
            ANSWERED,
            {"role": "tool", "name": "now", "tool_call_id": "ghijkl456", "content": "12:00"},
        ],
        "arguments": {"tools": [WEATHER, NO_ARGUMENTS]},
    },
    "arguments as text": {
        "messages": [
            *ASKED,
            {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "now", "arguments": '{"a": 1}'}}]},
            ANSWERED,
        ]
    },
    "call ids that are too short": {
        "messages": [
            *ASKED,
            {"role": "assistant", "tool_calls": [{**CALL, "id": "1"}]},
            {**ANSWERED, "tool_call_id": "1"},
        ]
    },
    "tools in the user's message": {
        "messages": ASKED,
        "arguments": {"tools": [WEATHER], "tools_in_user_message": False, "date_string": "01 Jan 2030"},
    },
    "thinking on": {"messages": said(("user", "2 + 2?")), "arguments": {"enable_thinking": True}},
    "thinking off": {"messages": said(("user", "2 + 2?")), "arguments": {"enable_thinking": False}},
    "reasoning": {"messages": [*said(("user", "2 + 2?")), THOUGHT], "arguments": {"add_generation_prompt": False}},
    "reasoning of an earlier turn": {"messages": [*said(("user", "2 + 2?")), THOUGHT, *said(("user", "And 3?"))]},
    "reasoning under another name": {
        "messages": [*said(("user", "2 + 2?")), {"role": "assistant", "content": "4", "thinking": "Hm."}],
        "arguments": {"add_generation_prompt": False},
    },
    "reasoning in the text": {
        "messages": said(("user", "2 + 2?"), ("assistant", "<think>\nHm.\n</think>\n\n4")),
        "arguments": {"add_generation_prompt": False},
    },
    "content in parts": {"messages": said(("system", PARTS[:1]), ("user", PARTS))},
    "an image": {"messages": said(("user", [{"type": "image"}, {"type": "text", "text": "What is it?"}]))},
    "another role": {"messages": said(("user", "Hi!"), ("critic", "Hm."), ("user", "Well?"))},
    "continued": {
        "messages": said(*TALK[:2], ("assistant", "Hello. How ")),
        "arguments": {"continue_final_message": True},
    },
    "continued parts": {
        "messages": said(("user", "Hi!"), ("assistant", PARTS)),
        "arguments": {"continue_final_message": True},
    },
}

TREE = [{"n": 1, "c": [{"n": 2, "c": []}]}, {"n": 3, "c": []}]

# What templates may use, one thing each.
FEATURE_TEMPLATES = {
    "json": "{{ tools | tojson }}",
    "json, indented": "{{ tools | tojson(indent=2) }}",
    "json, options": "{{ tools | tojson(True, None, (',', ':'), sort_keys=true) }}",
    "json of texts and numbers": "{{ ['</a>', 'é', 1.0, 1e100, none, [], {}] | tojson }}",
    "json of nothing": "{{ missing | tojson }}",
    "blocks are trimmed": "  {% if true %}\n  a\n\t{% endif %}\n b {# c #}\n{{ 'x' }}\n",
    "trimming by hand": "a \n {{- ' b ' -}} \n c {%- if true -%} \n d {%- endif %}\n",
    "continue": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
    "break": "{% for m in messages %}{{ m.content }}{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}",
    "the loop": "{% for m in messages %}{{ [loop.index, loop.last, loop.length, loop.previtem] }}{% endfor %}",
    "a filtered loop": "{% for m in messages if m.role == 'user' %}{{ [loop.index, loop.length] }}{% endfor %}",
    "a loop over nothing": "{% for m in missing %}x{% else %}none{% endfor %}",
    "a loop over a filter": "{% for c in messages | map(attribute='content') %}{{ loop.last }}{{ c }}{% endfor %}",
    "a recursive loop": "{% for t in tree recursive %}({{ t.n }}{{ loop(t.c) }}){% endfor %}",
    "namespaces": "{% set a = namespace(n=0) %}{% for m in messages %}{% set a.n = a.n + 1 %}{% endfor %}{{ a.n }}",
    "hidden names in namespaces": "{% set ns = namespace(_n=0) %}",
    "scopes": "{% set x = 1 %}{% for m in messages %}{% set x = 2 %}{% endfor %}{{ x }}",
    "generation": "{% for m in messages %}[{% generation %}{{ m.content }}{% endgeneration %}]{% endfor %}",
    "scope of generation": "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x is defined }}",
    "macros": "{% macro f(m, n=2) %}<{{ m.role * n }}>{% endmacro %}{{ f(messages[0]) }}{{ f(messages[1], n=1) }}",
    "dictionaries": "{{ dict(a=1) }}{{ {'b': 2}.items() | list }}{{ messages[0].get('x', 'y') }}",
    "concatenation": "{{ 1 ~ none ~ 'a' ~ 1.5 ~ true ~ [1] ~ missing }}",
    "texts": "{{ 'a-b'.split('-') }}{{ ' x '.strip() }}{{ 'abc'[1:] }}{{ 'x' in 'xyz' }}{{ 'A' | lower }}",
    "escaping": "{{ '<&>' }}{{ '<&>' | e }}{{ 'a\"b' | string }}",
    "numbers": "{{ 7 // 2 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 7 % 3 }} {{ 1.10 }} {{ '%s %05.1f' % ('a', 2) }}",
    "tests": "{{ missing is defined }}{{ none is none }}{{ 'a' is string }}{{ [] is iterable }}{{ {} is mapping }}",
    "documents": "{{ documents is none }}{{ tools is none }}{{ add_generation_prompt }}",
    "the date": "{{ strftime_now('%d %b %Y %H:%M:%S %j %A') }}",
    "a rejection": "{{ raise_exception('roles must “alternate”') }}",
    "an attribute of nothing": "{{ missing.x }}",
    "a long range": "{% for i in range(100001) %}{% endfor %}",
    "python's insides": "{{ messages.__class__.__mro__ }}",
    "changing messages": "{{ messages.append(1) }}",
    "adding what does not add": "{{ 'a' + 1 }}",
}
FEATURE_ARGUMENTS: dict[str, dict[str, Any]] = {
    **{name: {"tools": [WEATHER]} for name in ("json", "json, indented", "json, options")},
    "a recursive loop": {"tree": TREE},
}
FEATURE_MESSAGES = said(("user", "a b"), ("assistant", "c"), ("user", "d"))
