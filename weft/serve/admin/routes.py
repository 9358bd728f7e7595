"""The server's own routes."""

from weft.serve.admin import lab, loading, lora, streams
from weft.serve.admin.docs import docs
from weft.serve.admin.health import health, live, metrics, ready
from weft.serve.admin.page import asset, index
from weft.serve.http.routes import Route

ROUTES = [
    Route("GET", "/health", health, "Whether the server answers", open=True),
    Route("GET", "/ready", ready, "Whether the models that load at the start are ready"),
    Route("GET", "/metrics", metrics, "Metrics for Prometheus"),
    Route("GET", "/weft/live", live, "Requests and models, for the page"),
    Route("GET", "/weft/streams/{id}", streams.rejoin, "The rest of a stream, after a lost connection"),
    Route("DELETE", "/weft/streams/{id}", streams.stop, "End a stream"),
    Route("POST", "/models/load", loading.load, "Load a model", body=loading.ModelRequest),
    Route("POST", "/models/unload", loading.unload, "Unload a model", body=loading.ModelRequest),
    Route("POST", "/v1/load_lora_adapter", lora.load, "Load an adapter", body=lora.LoadRequest),
    Route("POST", "/v1/unload_lora_adapter", lora.unload, "Unload an adapter", body=lora.UnloadRequest),
    Route("GET", "/v1/lora_adapters", lora.adapters, "The adapters"),
    Route("GET", "/docs", docs, "The API reference, as a page"),
    Route("GET", "/", index, "The page"),
    Route("GET", "/page/{name:path}", asset, "A file of the page"),
    Route("GET", "/lab", lab.index, "Leads to /lab/"),
    Route("GET", "/lab/{name:path}", lab.file, "The page with models that run in the browser, and its files"),
]
