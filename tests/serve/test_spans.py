"""Spans tell OpenTelemetry of requests by the conventions' names, never what was said; off unless asked for."""

import sys
import time

import httpx
import pytest

from weft.errors import InputError, UnsupportedError
from weft.serve import ModelSpec, Settings
from weft.serve.work.spans import Spans

trace = pytest.importorskip("opentelemetry.sdk.trace")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

SECRET = "a-secret-thing"


@pytest.fixture
def spans(serve):
    """A server that writes spans, and where they are."""
    running, exporter = serve(keys=("key",)), memory.InMemorySpanExporter()
    provider = trace.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    running.app.serving.spans = Spans(provider)

    def asked(path: str, body: dict | None = None, **headers: str):
        exporter.clear()
        method = "POST" if body is not None else "GET"
        headers = {"authorization": "Bearer key", **headers}
        httpx.request(method, f"{running.url}{path}", json=body, headers=headers, timeout=60)
        deadline = time.monotonic() + 5
        while not exporter.get_finished_spans() and time.monotonic() < deadline:
            time.sleep(0.002)
        (found,) = exporter.get_finished_spans()
        assert SECRET not in found.to_json() and '"key"' not in found.to_json()
        return found

    return asked


def test_a_chat_is_a_span_with_its_model_and_counts(spans):
    said = [{"role": "user", "content": SECRET}]
    for stream in (False, True):
        body = {"model": "tiny", "messages": said, "max_tokens": 5, "ignore_eos": True, "stream": stream}
        found = spans("/v1/chat/completions", body)
        assert found.name == "chat tiny" and found.kind.name == "SERVER" and found.parent is None
        facts = found.attributes
        assert facts["gen_ai.operation.name"] == "chat" and facts["gen_ai.request.model"] == "tiny"
        assert facts["gen_ai.usage.output_tokens"] == 5 and facts["gen_ai.usage.input_tokens"] > 5
        assert facts["gen_ai.response.finish_reasons"] == ("length",)
        assert facts["http.route"] == "/v1/chat/completions" and facts["http.response.status_code"] == 200
        assert 0 < facts["gen_ai.response.time_to_first_chunk"] * 1e9 <= found.end_time - found.start_time


def test_other_work_has_the_conventions_names(spans):
    assert spans("/v1/completions", {"model": "tiny", "prompt": SECRET, "max_tokens": 1}).name == "text_completion tiny"
    found = spans("/v1/embeddings", {"model": "bert", "input": SECRET})
    assert found.name == "embeddings bert" and "gen_ai.usage.output_tokens" not in found.attributes
    found = spans("/v1/models")
    assert found.name == "GET /v1/models" and not [name for name in found.attributes if name.startswith("gen_ai")]
    assert spans(f"/{SECRET}").name == "GET (none)"


def test_errors_are_spans_too(spans):
    found = spans("/v1/chat/completions", {"model": "tiny", "messages": [], "x": SECRET})
    assert found.attributes["error.type"] == "400" and found.status.is_unset
    assert spans("/v1/models", authorization="Bearer no").attributes["http.response.status_code"] == 401


def test_a_client_s_trace_goes_on(spans):
    found = spans("/health", traceparent="00-0123456789abcdef0123456789abcdef-0123456789abcdef-01")
    assert f"{found.context.trace_id:x}" == "123456789abcdef0123456789abcdef" and found.parent.is_remote
    assert spans("/health", traceparent="nonsense").parent is None


def test_spans_go_to_the_collector_that_is_named_and_nowhere_else(serve, server):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    received: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    assert server.app.serving.spans is None
    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        Thread(target=collector.serve_forever, daemon=True).start()
        running = serve(collector=f"http://127.0.0.1:{collector.server_port}/")
        httpx.get(f"{running.url}/health")
        running.__exit__()  # what is left is sent at the end
        collector.shutdown()
    ((path, body),) = received
    assert path == "/v1/traces" and b"GET /health" in body


def test_without_the_packages_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(UnsupportedError, match=r"weft-engine\[otel\]"):
        Spans.to("http://127.0.0.1:4318")


@pytest.mark.parametrize("bad", ["localhost:4318", "ftp://x", "http://", "http://a b"])
def test_a_collector_is_an_address(bad):
    with pytest.raises(InputError, match="collector"):
        Settings(models=(ModelSpec("m", "m"),), collector=bad).checked()
