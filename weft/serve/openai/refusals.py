"""Parts of OpenAI's API that weft does not have, and what it has instead."""

from __future__ import annotations

from weft.serve.http.faults import Fault

_EARLIER = "POST /v1/responses with previous_response_id continues a conversation"
_SEVERAL = "send requests at the same time instead: the server computes them together"
# The beginning of a path, what is not there, and what is.
INSTEAD = {
    "/v1/audio": ("audio", "the models of this server read and write text"),
    "/v1/images": ("images", "the models of this server read and write text"),
    "/v1/videos": ("videos", "the models of this server read and write text"),
    "/v1/files": ("files", "send texts in the request itself; `weft embed` and `weft index` read files"),
    "/v1/uploads": ("uploads", "send texts in the request itself; `weft embed` and `weft index` read files"),
    "/v1/batches": ("batches", _SEVERAL),
    "/v1/messages/batches": ("batches", _SEVERAL),
    "/v1/moderations": ("moderation", "serve a model that classifies texts, and POST /v1/classify"),
    "/v1/assistants": ("assistants", _EARLIER),
    "/v1/threads": ("threads", _EARLIER),
    "/v1/conversations": ("conversations", _EARLIER),
    "/v1/vector_stores": ("vector stores", "`weft index build` and `weft search` search documents"),
    "/v1/fine_tuning": ("fine-tuning", "POST /v1/load_lora_adapter loads an adapter that was trained elsewhere"),
    "/v1/realtime": ("realtime sessions", "POST /v1/chat/completions with stream: true answers as it generates"),
}


def refusal_of(path: str) -> Fault | None:
    """The fault for a path of OpenAI's API that weft does not have; None for any other path.

    It is a 404 and not a 501, which OpenAI's clients would retry.
    """
    for start, (what, instead) in INSTEAD.items():
        if path == start or path.startswith(f"{start}/"):
            message = f"weft has no {what} ({start}): {instead}"
            return Fault(404, message, kind="not_found_error", code="not_supported")
    return None
