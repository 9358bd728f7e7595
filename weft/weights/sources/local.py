"""Lists the models that are on this machine."""

from pathlib import Path

from weft.frozen import frozen
from weft.weights.sources import catalog, choice
from weft.weights.sources.folders import hub_cache
from weft.weights.sources.snapshots import COMMIT, files_in, local_commit


@frozen
class LocalModel:
    """A model that is on this machine; `name` is what `locate` takes."""

    name: str
    path: Path
    bytes: int
    format: str
    source: str


def list_local() -> list[LocalModel]:
    """Every complete model in weft's cache and in the hub's, by name."""
    found = [*_local_catalogue(), *_local_hub()]
    return sorted(found, key=lambda model: model.name.lower())


def _local_catalogue() -> list[LocalModel]:
    models = []
    for entry in catalog.entries():
        folder = entry.home()
        if entry.complete(folder):
            path = entry.path(folder)
            models.append(LocalModel(entry.name, path, entry.bytes, _format(path), "package index"))
    return models


def _format(path: Path) -> str:
    return "gguf" if path.suffix.lower() == ".gguf" else "safetensors"


def _local_hub() -> list[LocalModel]:
    models = []
    root = hub_cache()
    for folder in sorted(root.glob("models--*--*")):
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        for commit, name in _revisions(repo, folder).items():
            models.extend(_snapshot_models(repo, folder / "snapshots" / commit, name))
    return models


def _revisions(repo: str, folder: Path) -> dict[str, str]:
    """Commits that have a snapshot, with the revision to write for each: a ref's name, else the commit itself."""
    refs = {}
    for name in files_in(folder / "refs"):
        commit = local_commit(repo, name)
        if commit and (commit not in refs or name == "main"):
            refs[commit] = name
    snapshots = folder / "snapshots"
    commits = [path.name for path in sorted(snapshots.iterdir())] if snapshots.is_dir() else []
    return {commit: refs.get(commit, commit) for commit in commits if COMMIT.fullmatch(commit)}


def _bytes(folder: Path, names: list[str]) -> int:
    return sum((folder / name).stat().st_size for name in names)


def _snapshot_models(repo: str, folder: Path, revision: str) -> list[LocalModel]:
    names = files_in(folder)
    suffix = "" if revision == "main" else f"@{revision}"
    models = []
    if choice.ready(folder, names, None, lenient=True) == folder:
        chosen = choice.choose(repo, names, None)
        models.append(LocalModel(f"{repo}{suffix}", folder, _bytes(folder, chosen), "safetensors", "hub"))
    for name in choice.ggufs(names):
        parts = choice.parts_of(name)
        if set(parts) <= set(names):
            quant = choice.quant_of(name)
            label = f"{repo}:{quant}{suffix}" if quant else f"{repo}{suffix}"
            models.append(LocalModel(label, folder / name, _bytes(folder, parts), "gguf", "hub"))
    return models
