"""Settings that clients of other servers send and that are not fields of weft's schemas: one table for all APIs.

Each is treated in one of three ways:

- read    weft has it under another name;
- ignored it has no influence on the answer here; the header `x-weft-ignored` names it;
- refused ignoring it would change the answer: a 400 says why. Values that switch the feature off are ignored.

A setting that is in neither the table nor the schema is refused by name: it may be a misspelling. With
`weft serve --strict` the ignored ones are refused too. `docs/settings.md` is written from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from weft.frozen import frozen

CHAT, COMPLETIONS = ("/v1/chat/completions",), ("/v1/completions",)
RESPONSES = ("/v1/responses",)
MESSAGES = ("/v1/messages", "/v1/messages/count_tokens")
NATIVE = ("/completion", "/completions", "/infill")
OLLAMA = ("/api/chat", "/api/generate")
OLLAMA_EMBED = ("/api/embed", "/api/embeddings")
EMBEDDINGS = ("/v1/embeddings",)
RANKING = ("/rerank", "/v1/rerank", "/v2/rerank", "/embed", "/", "/classify", "/v1/classify", "/score", "/v1/score")
TEXT = CHAT + COMPLETIONS
LLAMA = TEXT + NATIVE

UNSET: Any = object()  # what `read` returns for a value that means: not set

Harmless = Callable[[Any, Mapping[str, Any]], bool]


@frozen
class ClientSetting:
    """One setting on some routes. `field` is the one it is read as, through `read`. Without a field it is ignored where
    `harmless(value, body)`, always if that is None, and refused elsewhere. A name such as `options.num_ctx` is a key
    of an object."""

    name: str
    paths: tuple[str, ...]
    note: str
    field: str = ""
    read: Callable[[Any], Any] = lambda value: value
    harmless: Harmless | None = None

    @property
    def treatment(self) -> str:
        """read, ignored or refused"""
        return "read" if self.field else "ignored" if self.harmless is None else "refused"


def _count(value: Any) -> Any:
    """A number of tokens; others write -1 for no limit."""
    return UNSET if isinstance(value, int) and not isinstance(value, bool) and value < 0 else value


def _is(*harmless: Any) -> Harmless:
    """Whether the value is one of these; True and 1 differ."""
    return lambda value, _: any(type(value) is type(one) and value == one for one in harmless)


def _off(value: Any, _: Mapping[str, Any]) -> bool:
    """Whether a number is 0 or below, false, or an empty list."""
    return value in ([], {}, "") or (isinstance(value, int | float) and value <= 0)


def _no_penalty(value: Any, body: Mapping[str, Any]) -> bool:
    """Whether a window for the repetition penalty is the whole text, as here, or there is no penalty."""
    given = {**body, **(body["options"] if isinstance(body.get("options"), dict) else {})}
    penalties = [given.get(name) for name in ("repeat_penalty", "repetition_penalty")]
    return value == -1 or all(penalty in (None, 1, 1.0) for penalty in penalties)


def _rows(names: str, paths: tuple[str, ...], note: str, **treatment: Any) -> list[ClientSetting]:
    return [ClientSetting(name, paths, note, **treatment) for name in names.split()]


def _in_options(rows: list[ClientSetting]) -> list[ClientSetting]:
    """The same settings inside Ollama's `options`."""
    return [replace(row, name=f"options.{row.name}", paths=OLLAMA + OLLAMA_EMBED) for row in rows]


# Sampling that weft does not have: the number that switches it off is harmless, its parameters alone are too.
_SAMPLING = [
    *_rows("mirostat", LLAMA, "weft has no Mirostat sampling; 0 is off", harmless=_off),
    *_rows("mirostat_tau mirostat_eta", LLAMA, "parameters of Mirostat sampling, which is off"),
    *_rows("tfs_z", LLAMA, "weft has no tail-free sampling; 1 is off", harmless=_is(1, 1.0)),
    *_rows(
        "repeat_last_n penalty_last_n", LLAMA, "the repetition penalty sees the whole text, -1", harmless=_no_penalty
    ),
]
_MORE_SAMPLING = [
    *_rows("dry_multiplier", LLAMA, "weft has no DRY penalty; 0 is off", harmless=_off),
    *_rows(
        "dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers",
        LLAMA,
        "parameters of the DRY penalty, which is off",
    ),
    *_rows("xtc_probability", LLAMA, "weft has no XTC sampling; 0 is off", harmless=_off),
    *_rows("xtc_threshold", LLAMA, "a parameter of XTC sampling, which is off"),
    *_rows("dynatemp_range", LLAMA, "weft has no dynamic temperature; 0 is off", harmless=_off),
    *_rows("dynatemp_exponent", LLAMA, "a parameter of the dynamic temperature, which is off"),
    *_rows("top_n_sigma adaptive_target", LLAMA, "weft has no such sampling; -1 is off", harmless=_off),
    *_rows("adaptive_decay", LLAMA, "a parameter of adaptive sampling, which is off"),
    *_rows("top_a epsilon_cutoff eta_cutoff smoothing_factor", LLAMA, "weft has no such sampling", harmless=_off),
    *_rows("min_keep", LLAMA, "weft has no such limit; 0 is off", harmless=_off),
    *_rows("samplers", LLAMA, "the order of the sampling rules is fixed", harmless=_off),
    *_rows("use_beam_search early_stopping", LLAMA, "weft has no beam search; false is off", harmless=_off),
    *_rows("length_penalty", LLAMA, "for beam search only; 1 is off", harmless=_is(1, 1.0)),
]

_TEXT = [
    *_rows("n_predict max_new_tokens num_predict", TEXT, "as in llama-server, TGI", field="max_tokens", read=_count),
    *_rows("repeat_penalty", TEXT, "as in llama-server and Ollama", field="repetition_penalty"),
    *_rows("grammar ebnf", TEXT, "as in llama-server, SGLang", field="guided_grammar"),
    *_rows("json_schema", TEXT, "as in llama-server", field="guided_json"),
    *_rows("regex", TEXT, "as in SGLang", field="guided_regex"),
    *_rows("cache_prompt", TEXT, "as in llama-server", field="prefix_cache"),
    *_rows("stop_sequences stop_strings", TEXT, "as in TGI", field="stop"),
    *_rows("ttl", TEXT, "as in LM Studio, in seconds", field="keep_alive"),
    *_rows(
        "reasoning_budget_tokens thinking_budget_tokens thinking_token_budget",
        TEXT,
        "as in llama-server, vLLM",
        field="reasoning_budget",
        read=_count,
    ),
    *_rows(
        "user safety_identifier metadata store service_tier request_id",
        LLAMA,
        "about the account and its records, which this server does not keep",
    ),
    *_rows(
        "prompt_cache_key prompt_cache_retention prompt_cache_options n_cache_reuse id_slot slot_id",
        LLAMA,
        "prompts are cached by their content, on this server",
    ),
    *_rows("prediction draft_model", LLAMA, "speed only: weft drafts by itself"),
    *_rows(
        "speculative.n_max speculative.n_min speculative.p_min speculative.type",
        LLAMA,
        "speed only: weft drafts by itself",
    ),
    *_rows("verbosity", TEXT, "a hint that models here are not trained for"),
    *_rows("num_ctx n_keep n_discard", LLAMA, "the context is the server's setting, and never shifts"),
    *_rows("return_progress sse_ping_interval backend_sampling verbose", LLAMA, "about progress, not the answer"),
    *_rows("guided_decoding_backend spaces_between_special_tokens", LLAMA, "about the engine, not the answer"),
    *_rows("guided_whitespace_pattern", LLAMA, "white space in JSON is limited as weft limits it", harmless=_off),
    *_rows("n_indent t_max_predict_ms", LLAMA, "weft has no such limit; 0 is off", harmless=_off),
    *_rows("include_stop_str_in_output", LLAMA, "stop strings are never part of the text", harmless=_off),
    *_rows("return_token_ids return_tokens_as_token_ids", LLAMA, "answers hold text, not ids", harmless=_off),
    *_rows("detokenize", LLAMA, "answers are always text", harmless=_is(True)),
    *_rows("allowed_token_ids bad_words logits_processors", LLAMA, "use logit_bias or a grammar", harmless=_off),
    *_rows("truncate_prompt_tokens", TEXT, "use truncate", harmless=lambda value, _: False),
    *_rows("lora lora_request", LLAMA, "name the adapter as model, or in adapter", harmless=_off),
    *_rows("grammar_lazy grammar_triggers preserved_tokens", LLAMA, "a grammar here covers the answer", harmless=_off),
    *_rows("extra_body", LLAMA, "send its fields at the top level", harmless=_off),
    *_rows("options", LLAMA, "Ollama's: send its fields at the top level", harmless=_off),
]
_CHAT = [
    *_rows("timings_per_token", LLAMA, "timings are at the end of the answer"),
    *_rows("skip_special_tokens", CHAT, "the text of a chat is what the model writes"),
    *_rows("mm_processor_kwargs", CHAT, "about images, which models here do not take"),
    *_rows("reasoning_format", CHAT, "reasoning is always a field of its own", harmless=_is("auto", "deepseek")),
    *_rows("include_reasoning parse_tool_calls", CHAT, "reasoning and calls are always apart", harmless=_is(True)),
    *_rows("echo add_special_tokens", CHAT, "the chat template writes the prompt", harmless=_off),
    *_rows("documents", CHAT, "put documents into a message", harmless=_off),
    *_rows("chat_template", CHAT, "the model's own template is used", harmless=_off),
    *_rows("prompt_logprobs", CHAT, "use /v1/completions", harmless=lambda value, _: False),
    *_rows("best_of", CHAT, "all n answers are returned", harmless=_is(1)),
    *_rows("audio", CHAT, "this server writes text only", harmless=_off),
    *_rows("modalities", CHAT, "this server writes text only", harmless=lambda value, _: value in ([], ["text"])),
    *_rows("web_search_options", CHAT, "this server does not search the web", harmless=lambda value, _: False),
]
_NATIVE = [
    *_rows("max_tokens max_completion_tokens max_new_tokens", NATIVE, "as in OpenAI's API", field="n_predict"),
    *_rows("n", NATIVE, "as in OpenAI's API", field="n_cmpl"),
    *_rows("logprobs", NATIVE, "as in OpenAI's API", field="n_probs"),
    *_rows("repetition_penalty", NATIVE, "as in OpenAI's API of vLLM", field="repeat_penalty"),
    *_rows("prefix_cache", NATIVE, "as in weft's other routes", field="cache_prompt"),
    *_rows("post_sampling_probs", NATIVE, "probabilities are those before sampling", harmless=_off),
]
_RESPONSES = [
    *_rows(
        "max_tokens max_completion_tokens n_predict",
        RESPONSES,
        "as in chat completions",
        field="max_output_tokens",
        read=_count,
    ),
    *_rows(
        "service_tier safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options max_tool_calls",
        RESPONSES,
        "about OpenAI's service",
    ),
]
_MESSAGES = [
    *_rows("max_tokens_to_sample", MESSAGES[:1], "as in Anthropic's older API", field="max_tokens"),
    *_rows(
        "stop", MESSAGES[:1], "as in OpenAI's API", field="stop_sequences", read=lambda v: [v] if type(v) is str else v
    ),
    *_rows(
        "metadata service_tier speed inference_geo user_profile_id workspace_id betas",
        MESSAGES,
        "about the account and Anthropic's service",
    ),
    *_rows("cache_control", MESSAGES, "prompts are cached by their content"),
    *_rows("context_management", MESSAGES, "messages are never removed from a conversation"),
    *_rows("mcp_servers container", MESSAGES, "this server runs no tools", harmless=_off),
]
_OLLAMA = [
    *_in_options(
        [
            *_SAMPLING,
            *_rows("max_tokens", (), "as in OpenAI's API", field="num_predict"),
            *_rows("repetition_penalty", (), "as in vLLM", field="repeat_penalty"),
            *_rows(
                "num_ctx num_batch num_gpu main_gpu num_thread numa low_vram use_mmap use_mlock f16_kv vocab_only "
                "logits_all embedding_only",
                (),
                "the server's own settings decide",
            ),
            *_rows("num_keep", (), "the context never shifts"),
            *_rows("penalize_newline draft_num_predict", (), "Ollama ignores it too"),
            *_rows("rope_frequency_base rope_frequency_scale", (), "the model's own are used", harmless=_off),
        ]
    ),
    *_rows("shift", OLLAMA, "the context never shifts"),
]
_OTHERS = [
    *_rows("user request_id priority", EMBEDDINGS + RANKING, "about the account and the queue"),
    *_rows("truncate_prompt_tokens", EMBEDDINGS, "use truncate", harmless=lambda value, _: False),
]

TABLE: tuple[ClientSetting, ...] = (
    *_TEXT,
    *_SAMPLING,
    *_MORE_SAMPLING,
    *_CHAT,
    *_NATIVE,
    *_RESPONSES,
    *_MESSAGES,
    *_OLLAMA,
    *_OTHERS,
)


def settings_for(path: str) -> dict[str, ClientSetting]:
    """The table's rows for a route, by name."""
    return {row.name: row for row in TABLE if path in row.paths}
