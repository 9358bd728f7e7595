"""The routes for training."""

from weft.serve.http.routes import Route
from weft.serve.training import handlers
from weft.serve.training.schemas import RegisterRequest, RunRequest

RUN = "/v1/training/runs/{name}"
ROUTES = [
    Route("GET", "/v1/training/runs", handlers.runs, "The runs of training"),
    Route("POST", "/v1/training/runs", handlers.start, "Train an adapter", body=RunRequest),
    Route("GET", RUN, handlers.show, "A run and its steps"),
    Route("DELETE", RUN, handlers.delete, "Delete a run"),
    Route("POST", f"{RUN}/stop", handlers.stop, "Stop and save a run"),
    Route("POST", f"{RUN}/resume", handlers.resume, "Go on with a run"),
    Route("POST", f"{RUN}/evaluate", handlers.evaluate, "Compare a run's adapter with its base"),
    Route("POST", f"{RUN}/load", handlers.load, "Load a run's adapter"),
    Route("POST", f"{RUN}/register", handlers.register, "Keep a run's adapter as a version", body=RegisterRequest),
]
