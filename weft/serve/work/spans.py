"""OpenTelemetry spans of requests: time, route, model and counts, never prompts or answers.

Off unless the operator names a collector. Attribute names follow the conventions for HTTP and for generative models.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import UnsupportedError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from weft.serve.work.tracking import Call

COMPLETING = ("/v1/completions", "/api/generate")  # text completion; other generation routes are chats


class Spans:
    """Spans of finished requests, sent in the background."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("weft.serve")
        self._parents = TraceContextTextMapPropagator()

    @classmethod
    def to(cls, collector: str) -> Spans:
        """Spans for the collector at an address, as http://127.0.0.1:4318."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise UnsupportedError(
                "serve",
                f"--collector needs {error.name}, which is not installed",
                advice="run: pip install weft-engine[otel]",
            ) from None
        provider = TracerProvider(resource=Resource.create({"service.name": "weft"}))
        exporter = OTLPSpanExporter(endpoint=f"{collector.rstrip('/')}/v1/traces", timeout=5)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        return cls(provider)

    def note(self, call: Call, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Record the span of a request that has ended, within the client's trace if it sent one."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        end = time.time_ns()
        parent = {name: headers[name.encode()].decode("latin-1") for name in _TRACE if name.encode() in headers}
        span = self._tracer.start_span(
            name_of(call),
            context=self._parents.extract(parent),
            kind=SpanKind.SERVER,
            attributes=attributes_of(call, status),
            start_time=end - int(call.age_s * 1e9),
        )
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end)

    def close(self) -> None:
        """Send the remaining spans. Blocks."""
        self._provider.shutdown()


_TRACE = ("traceparent", "tracestate")


NOT_GENERATING = {"embed": "embeddings", "rerank": "rerank", "classify": "classify"}  # a model's kind -> the operation


def operation_of(call: Call) -> str:
    if call.kind in NOT_GENERATING:
        return NOT_GENERATING[call.kind]
    return "text_completion" if call.route in COMPLETING else "chat"


def name_of(call: Call) -> str:
    return f"{operation_of(call)} {call.model}" if call.model else f"{call.method} {call.route}"


def attributes_of(call: Call, status: int) -> dict[str, Any]:
    """The attributes of a request's span: facts and counts only."""
    said: dict[str, Any] = {
        "http.request.method": call.method,
        "http.route": call.route,
        "http.response.status_code": status,
        "weft.request_id": call.id,
    }
    if status >= 400:
        said["error.type"] = str(status)
    if not call.model:
        return said
    said |= {
        "gen_ai.operation.name": operation_of(call),
        "gen_ai.provider.name": "weft",
        "gen_ai.request.model": call.model,
        "gen_ai.usage.input_tokens": call.prompt_tokens,
    }
    if call.kind not in NOT_GENERATING:
        said |= {"gen_ai.usage.output_tokens": call.output_tokens, "weft.cached_tokens": call.cached_tokens}
    if call.finish_reason:
        said["gen_ai.response.finish_reasons"] = [call.finish_reason]
    if call.began is not None:
        said["gen_ai.response.time_to_first_chunk"] = round(call.began - call.started, 6)
    return said
