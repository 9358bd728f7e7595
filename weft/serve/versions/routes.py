"""The routes of the registry."""

from weft.serve.http.routes import Route
from weft.serve.versions import handlers
from weft.serve.versions.schemas import EvaluateRequest, PromoteRequest, RollbackRequest, ShadowRequest

ONE = "/v1/registry/{name}"
ROUTES = [
    Route("GET", "/v1/registry", handlers.names, "The names of the registry"),
    Route("GET", ONE, handlers.show, "The versions of a name"),
    Route("POST", f"{ONE}/promote", handlers.promote, "Let an alias mean a version", body=PromoteRequest),
    Route(
        "POST",
        f"{ONE}/rollback",
        handlers.rollback,
        "Let an alias mean the version before",
        body=RollbackRequest,
        optional_body=True,
    ),
    Route("POST", f"{ONE}/evaluate", handlers.evaluate, "Record measures of a version", body=EvaluateRequest),
    Route("POST", f"{ONE}/shadow", handlers.start_shadow, "Begin a shadow run", body=ShadowRequest, optional_body=True),
    Route("DELETE", f"{ONE}/shadow", handlers.stop_shadow, "End a shadow run"),
]
