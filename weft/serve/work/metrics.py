"""Metrics in Prometheus' text format, with the names that vLLM's dashboards use, after the prefix `weft:`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from typing import Any

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
PREFIX = "weft:"
MOST_SERIES = 1000  # of one metric; further label values are counted together
OTHER = "(other)"

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
    "expert_hits_total": "Matrices of experts that a step found in memory, where not all of them fit.",
    "expert_misses_total": "Matrices of experts that a step read from the file.",
    "te_request_count": "Embedding and reranking requests.",
    "te_request_success": "Embedding and reranking requests that succeeded.",
    "te_request_failure": "Embedding and reranking requests that failed, by reason.",
    "http_requests_total": "HTTP requests by route and status.",
}
GAUGES = {
    "num_requests_running": "Requests that are running.",
    "num_requests_waiting": "Requests in the queue.",
    "kv_cache_usage_perc": "Share of the pages that running requests hold, 0 to 1.",
    "expert_bytes": "Memory of experts that are in it now, where not all of them fit.",
    "te_queue_size": "Embedding requests that wait.",
    "lora_requests_info": "Adapters that are loaded.",
    "model_loaded": "1 for models in memory.",
    "model_bytes": "Planned memory of a loaded model.",
    "process_resident_memory_bytes": "Memory of the process.",
    "open_requests": "HTTP requests being answered.",
    "drift_alarm": "1 while the evidence that vectors have moved away from the reference is above its height.",
    "drift_evidence": "Evidence of drift, summed over checks.",
    "drift_alarm_height": "The evidence that is an alarm, at the chosen rate of false alarms.",
    "drift_divergence": "Sinkhorn divergence of the last vectors from the reference.",
    "drift_last_p": "The p-value of the last check.",
    "drift_vectors_seen": "Vectors that the detector has seen.",
    "drift_vectors_left_out": "Vectors that were not checked: there were too many at once, or they were not finite.",
    "drift_state": "1 for the state of the last check: warming (there was none), stable or drift.",
}


class Metrics:
    """All series. One event loop writes them, so there are no locks."""

    def __init__(self) -> None:
        self._counters: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, Histogram]] = {}

    def count(self, name: str, amount: float = 1, **given: str) -> None:
        assert name in COUNTERS, name
        series = self._counters.setdefault(name, {})
        key = _bounded(series, labels(**given))
        series[key] = series.get(key, 0) + amount

    def observe(self, name: str, value: float, **given: str) -> None:
        series = self._histograms.setdefault(name, {})
        key = _bounded(series, labels(**given))
        if key not in series:
            series[key] = Histogram(HISTOGRAMS[name][1])
        series[key].add(value)

    def keep_models(self, names: Collection[str]) -> None:
        """Drop the series of all models and adapters but these: the loaded ones."""
        families: list[dict[Labels, Any]] = [*self._counters.values(), *self._histograms.values()]
        for series in families:
            gone = [given for given in series if any(name == "model" and value not in names for name, value in given)]
            for given in gone:
                del series[given]

    def text(self, gauges: Mapping[tuple[str, Labels], float], counters: Mapping[tuple[str, Labels], float]) -> str:
        """All series as text, with the `gauges` and `counters` that others keep."""
        lines: list[str] = []
        for kind, names, others in (("counter", COUNTERS, counters), ("gauge", GAUGES, gauges)):
            for name, about in names.items():
                found = {given: value for (own, given), value in others.items() if own == name}
                if kind == "counter":
                    found = {**self._counters.get(name, {}), **found}
                if found:
                    lines += _head(name, about, kind)
                    lines += [f"{PREFIX}{name}{_shown(given)} {value:.12g}" for given, value in found.items()]
        for name, (about, _) in HISTOGRAMS.items():
            series = self._histograms.get(name)
            if series:
                lines += _head(name, about, "histogram")
                for given, made in series.items():
                    lines += made.lines(PREFIX + name, given)
        return "\n".join(lines) + "\n"


def _bounded(series: Mapping[Labels, object], given: Labels) -> Labels:
    """These labels, or where the metric has as many series as it may, those of all further ones."""
    if given in series or len(series) < MOST_SERIES:
        return given
    return tuple((name, OTHER) for name, _ in given)


def _head(name: str, about: str, kind: str) -> list[str]:
    return [f"# HELP {PREFIX}{name} {about}", f"# TYPE {PREFIX}{name} {kind}"]


def _shown(given: Labels) -> str:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in given) + "}" if given else ""
