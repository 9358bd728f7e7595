"""Schemathesis against a live server: whatever fits the document is answered as it says, what does not is refused.

    python tests/serve/contract.py 200

runs that many examples for each operation, positive and negative ones; test_contract.py runs one of each.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
for folder in ("tests/cli", "tests/models", "tests/serve", ""):
    sys.path.insert(0, str(ROOT / folder))

from weft.serve import BackgroundServer, ModelSpec, Settings  # noqa: E402

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
)


def run(files: dict[str, Path], examples: int, phases: str = "coverage,fuzzing") -> subprocess.CompletedProcess[str]:
    """Try all operations of a server over the tiny models, with a context so short that answers are quick."""
    short = {"threads": 1, "context": 256}
    specs = tuple(ModelSpec(name, str(path), {} if name == "bert" else short) for name, path in files.items())
    with BackgroundServer(Settings(models=specs, port=0)) as server, tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--url", server.url]
        command += ["--phases", phases, "--mode", "all", "--max-examples", str(examples), "--checks", ",".join(CHECKS)]
        command += ["--no-color", "--seed", "1", "--suppress-health-check", "all", "--request-timeout", "30"]
        return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def main() -> None:
    from tiny_models import write_models

    with tempfile.TemporaryDirectory() as folder:
        found = run(write_models(Path(folder)), int(sys.argv[1]))
    print(found.stdout[-6000:], found.stderr[-2000:])
    sys.exit(found.returncode)


if __name__ == "__main__":
    main()
