"""Metrics in Prometheus' text format, with the names that vLLM's dashboards use, after the prefix `weft:`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
PREFIX = "weft:"

Labels = tuple[tuple[str, str], ...]


def labels(**given: str) -> Labels:
    return tuple(sorted(given.items()))


class Histogram:
    """Counts of values at or below bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, given: Labels) -> Iterable[str]:
        running = 0
        for bound, count in zip((*self.bounds, None), self.counts):
            running += count
            edge = "+Inf" if bound is None else f"{bound:g}"
            yield f"{name}_bucket{_shown((*given, ('le', edge)))} {running}"
        yield f"{name}_sum{_shown(given)} {self.total:.9g}"
        yield f"{name}_count{_shown(given)} {running}"


# name: (help, bounds)
HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("From the request to its first token.", SECONDS),
    "inter_token_latency_seconds": ("Between one token and the next of an answer.", SHORT_SECONDS),
    "e2e_request_latency_seconds": ("From the request to its last token.", SECONDS),
    "request_queue_time_seconds": ("In the queue, before the first step.", SECONDS),
    "request_prefill_time_seconds": ("From the first step to the first token.", SECONDS),
    "request_decode_time_seconds": ("From the first token to the last.", SECONDS),
    "request_prompt_tokens": ("Tokens of prompts.", TOKENS),
    "request_generation_tokens": ("Tokens of answers.", TOKENS),
    "te_request_duration": ("Seconds of an embedding request.", SECONDS),
    "te_request_inference_duration": ("Seconds of computing an embedding request.", SECONDS),
    "te_request_queue_duration": ("Seconds that an embedding request waited.", SECONDS),
    "te_request_tokenization_duration": ("Seconds of tokenising the texts of an embedding request.", SECONDS),
    "te_request_input_length": ("Tokens of the texts of an embedding request.", TOKENS),
    "http_request_duration_seconds": ("Seconds of HTTP requests by route.", SECONDS),
}
COUNTERS = {
    "prompt_tokens_total": "Prompt tokens, computed or found in the prefix cache.",
    "generation_tokens_total": "Tokens that were generated.",
    "request_success_total": "Answers by the reason they ended.",
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Prompt tokens found in the prefix cache.",
    "num_preemptions": "Requests that were preempted: their KV pages were taken and computed again.",
    "spec_decode_num_draft_tokens_total": "Draft tokens of speculative decoding.",
    "spec_decode_num_accepted_tokens_total": "Draft tokens that were accepted.",
    "te_request_count": "Embedding and reranking requests.",
    "te_request_success": "Embedding and reranking requests that succeeded.",
    "te_request_failure": "Embedding and reranking requests that failed, by reason.",
    "http_requests_total": "HTTP requests by route and status.",
}
GAUGES = {
    "num_requests_running": "Requests that are running.",
    "num_requests_waiting": "Requests in the queue.",
    "kv_cache_usage_perc": "Share of the pages that running requests hold, 0 to 1.",
    "te_queue_size": "Embedding requests that wait.",
    "lora_requests_info": "Adapters that are loaded.",
    "model_loaded": "1 for models in memory.",
    "model_bytes": "Planned memory of a loaded model.",
    "process_resident_memory_bytes": "Memory of the process.",
    "open_requests": "HTTP requests being answered.",
}


class Metrics:
    """All series. One event loop writes them, so there are no locks."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, Labels], float] = {}
        self._histograms: dict[tuple[str, Labels], Histogram] = {}

    def count(self, name: str, amount: float = 1, **given: str) -> None:
        assert name in COUNTERS, name
        key = name, labels(**given)
        self._counters[key] = self._counters.get(key, 0) + amount

    def observe(self, name: str, value: float, **given: str) -> None:
        key = name, labels(**given)
        if key not in self._histograms:
            self._histograms[key] = Histogram(HISTOGRAMS[name][1])
        self._histograms[key].add(value)

    def text(self, gauges: Mapping[tuple[str, Labels], float], counters: Mapping[tuple[str, Labels], float]) -> str:
        """All series as text, with the `gauges` and `counters` that others keep."""
        lines: list[str] = []
        plain = (("counter", COUNTERS, {**self._counters, **counters}), ("gauge", GAUGES, gauges))
        for kind, names, values in plain:
            for name, about in names.items():
                found = [(given, value) for (own, given), value in values.items() if own == name]
                if found:
                    lines += _head(name, about, kind)
                    lines += [f"{PREFIX}{name}{_shown(given)} {value:.12g}" for given, value in found]
        for name, (about, _) in HISTOGRAMS.items():
            series = [(given, made) for (own, given), made in self._histograms.items() if own == name]
            if series:
                lines += _head(name, about, "histogram")
                for given, made in series:
                    lines += made.lines(PREFIX + name, given)
        return "\n".join(lines) + "\n"


def _head(name: str, about: str, kind: str) -> list[str]:
    return [f"# HELP {PREFIX}{name} {about}", f"# TYPE {PREFIX}{name} {kind}"]


def _shown(given: Labels) -> str:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in given) + "}" if given else ""
