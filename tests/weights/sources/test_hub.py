"""Models come out of the hub into the shared cache, in the hub's own layout, and out of it again without a socket."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import COMMIT, Hub, git_sha1, serving, sha256

from weft.errors import DownloadError, InputError, NotFoundError, OfflineError, UnsupportedError
from weft.weights.sources import choice, list_local, locate, pull

CONFIG = b'{"model_type": "bert"}'
WEIGHTS = b"weights " * 4096
REPO = {
    "config.json": CONFIG,
    "tokenizer.json": b'{"version": "1.0"}',
    "modules.json": b"[]",
    "1_Pooling/config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"pickle",
    "modeling_custom.py": b"import os",
    "onnx/model.onnx": b"onnx",
}
WANTED = ["1_Pooling/config.json", "config.json", "model.safetensors", "modules.json", "tokenizer.json"]
GGUFS = {
    "m-Q8_0.gguf": b"q8",
    "m-Q4_K_M.gguf": b"q4km",
    "m-UD-Q4_K_XL.gguf": b"ud",
    "mmproj-F16.gguf": b"eyes",
    "big/m-Q6_K-00001-of-00002.gguf": b"one",
    "big/m-Q6_K-00002-of-00002.gguf": b"two!",
}


@pytest.fixture
def cache(clean_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return clean_home / "huggingface" / "hub"


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub("org/name", dict(REPO), large=("model.safetensors",))) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield hub


@pytest.fixture
def gguf_hub(hub: Hub) -> Hub:
    hub.files, hub.large = dict(GGUFS), tuple(GGUFS)
    return hub


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any socket or process that is even created fails the test."""

    def refuse(*args: object, **options: object) -> None:
        pytest.fail("offline mode touched the network or started a process")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)


def test_a_repository_becomes_a_snapshot_in_the_hubs_layout(hub: Hub, cache: Path) -> None:
    found = locate("org/name")
    root = cache / "models--org--name"
    assert found.path == root / "snapshots" / COMMIT
    assert (found.revision, found.source, found.entry) == (COMMIT, f"hub:org/name@{COMMIT}", None)
    assert (root / "refs" / "main").read_text() == COMMIT
    assert (found.path / "model.safetensors").read_bytes() == WEIGHTS
    link = os.readlink(found.path / "1_Pooling" / "config.json")
    assert link == f"../../../blobs/{git_sha1(b'{}')}"
    assert os.readlink(found.path / "model.safetensors") == f"../../blobs/{sha256(WEIGHTS)}"


def test_only_weights_settings_and_vocabularies_are_fetched(hub: Hub) -> None:
    found = locate("org/name")
    have = sorted(path.relative_to(found.path).as_posix() for path in found.path.rglob("*") if path.is_file())
    assert have == WANTED
    assert len(hub.paths()) == 1 + len(WANTED)
    assert hub.paths()[-1].endswith("model.safetensors")  # the weights come last


def test_what_is_in_the_cache_needs_no_socket(hub: Hub, request: pytest.FixtureRequest) -> None:
    first = locate("org/name")
    request.getfixturevalue("no_network")
    assert locate("org/name") == first
    assert locate("org/name@main").path == first.path
    assert locate(f"org/name@{COMMIT}").path == first.path


def test_pull_follows_a_branch_that_moved_and_locate_does_not(hub: Hub, cache: Path) -> None:
    locate("org/name")
    hub.commit = "ab" * 20
    hub.files["config.json"] = b"{ }"
    assert locate("org/name").revision == COMMIT
    moved = pull("org/name")
    assert moved.revision == hub.commit and (moved.path / "config.json").read_bytes() == b"{ }"
    assert locate("org/name").revision == hub.commit
    weights = [path for path in hub.paths() if path.endswith(".safetensors")]
    assert len(weights) == 1  # the unchanged blob is shared


def test_a_snapshot_that_another_tool_left_incomplete_is_completed(hub: Hub, cache: Path) -> None:
    root = cache / "models--org--name"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    (root / "snapshots" / COMMIT).mkdir(parents=True)
    (root / "snapshots" / COMMIT / "config.json").write_bytes(CONFIG)
    found = locate("org/name")
    assert (found.path / "model.safetensors").read_bytes() == WEIGHTS


def test_a_mirror_that_lists_names_only_is_asked_about_each_file(hub: Hub) -> None:
    hub.behaviour.bare_listing = True
    found = locate("org/name")
    assert (found.path / "model.safetensors").resolve().name == sha256(WEIGHTS)
    assert len(hub.paths("HEAD")) == len(WANTED)


def test_the_description_of_a_file_is_the_hubs_even_when_the_bytes_are_elsewhere(hub: Hub) -> None:
    with serving(Hub("org/name", dict(REPO))) as mirror:
        hub.behaviour.bare_listing, hub.behaviour.redirect_to = True, mirror.address
        found = locate("org/name")
        assert (found.path / "model.safetensors").resolve().name == sha256(WEIGHTS)
        assert mirror.paths("HEAD") == [] and len(mirror.paths()) == 1


@pytest.mark.parametrize(
    "name",
    [
        "../../evil.safetensors",
        "/etc/evil.safetensors",
        "..\\evil.safetensors",
        "C:evil.safetensors",
        "a\0.safetensors",
    ],
)
def test_names_that_lead_out_of_the_cache_are_refused(hub: Hub, cache: Path, name: str) -> None:
    del hub.files["model.safetensors"]
    hub.behaviour.extra_names = [name] if "/" not in name else []
    if "/" in name:  # names with slashes are chosen only as subfolders of modules.json or GGUF files
        hub.behaviour.extra_names = [name.replace(".safetensors", ".gguf")]
        del hub.files["config.json"]
    with pytest.raises(DownloadError, match="outside its folder"):
        locate("org/name")
    assert not (cache / "models--org--name" / "blobs").exists()


@pytest.mark.parametrize("status, token, words", [(401, "", "set HF_TOKEN"), (403, "mine", "was not granted access")])
@pytest.mark.parametrize("open_listing", [False, True], ids=["closed listing", "open listing"])
def test_a_gated_repository_says_what_to_do(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, status: int, token: str, words: str, open_listing: bool
) -> None:
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    hub.behaviour.statuses = [200, status] if open_listing else [status]
    with pytest.raises(DownloadError, match=words) as error:
        locate("org/name")
    assert f"accept its licence on {hub.address}/org/name" in str(error.value) and str(status) in str(error.value)
    assert len(hub.seen) == 1 + open_listing


def test_the_token_comes_from_the_environment_or_its_file(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "cache" / "huggingface"
    home.mkdir(parents=True)
    (home / "token").write_text("from-file\n")
    locate("org/name")
    assert {headers["Authorization"] for _, _, headers in hub.seen} == {"Bearer from-file"}
    monkeypatch.setenv("HF_TOKEN", "from-env")
    hub.seen.clear()
    pull("org/name")
    assert {headers["Authorization"] for _, _, headers in hub.seen} == {"Bearer from-env"}


def test_an_unknown_repository_or_revision_is_not_found(hub: Hub) -> None:
    for spec in ("org/other", "org/name@v9"):
        with pytest.raises(NotFoundError, match="check both names"):
            locate(spec)


def test_an_unreachable_hub_falls_back_to_the_cache(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = locate("org/name")
    with serving(Hub("org/name", {})) as gone:
        monkeypatch.setenv("HF_ENDPOINT", gone.address)
    assert pull("org/name") == first
    (record,) = caplog.records
    assert "using the copy on this machine" in record.getMessage()


@pytest.mark.parametrize("variable", ["WEFT_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
@pytest.mark.usefixtures("no_network", "cache")
def test_offline_opens_no_socket_and_names_the_variable(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1")
    for spec in ("org/name", "all-MiniLM-L6-v2", "smollm2"):
        with pytest.raises(OfflineError, match=rf"offline mode is on \({variable}\)"):
            locate(spec)
    with pytest.raises(OfflineError, match="offline=True"):
        locate("org/name", offline=True)


def test_a_quantisation_picks_its_file_without_regard_to_case(gguf_hub: Hub) -> None:
    assert locate("org/name:q8_0").path.read_bytes() == b"q8"
    assert locate("org/name:UD-Q4_K_XL").path.read_bytes() == b"ud"
    assert locate("org/name").path.read_bytes() == b"q4km"
    with pytest.raises(NotFoundError, match="it has Q4_K_M, Q6_K, Q8_0, UD-Q4_K_XL"):
        locate("org/name:Q2_K")


def test_a_split_file_comes_with_all_its_parts(gguf_hub: Hub) -> None:
    found = locate("org/name:Q6_K@main")
    assert found.path.name == "m-Q6_K-00001-of-00002.gguf"
    assert found.path.with_name("m-Q6_K-00002-of-00002.gguf").read_bytes() == b"two!"


def test_the_default_quantisation_does_not_depend_on_what_is_cached(gguf_hub: Hub) -> None:
    locate("org/name:Q8_0")
    assert locate("org/name").path.name == "m-Q4_K_M.gguf"


def test_sharded_weights_are_complete_only_with_every_shard(hub: Hub) -> None:
    del hub.files["model.safetensors"]
    shards = {f"model-0000{i}-of-00002.safetensors": b"s%d" % i for i in (1, 2)}
    hub.files |= shards
    hub.files["model.safetensors.index.json"] = json.dumps({"weight_map": dict(zip("ab", shards))}).encode()
    found = locate("org/name")
    (found.path / "model-00002-of-00002.safetensors").unlink()
    before = len(hub.seen)
    assert (locate("org/name").path / "model-00002-of-00002.safetensors").read_bytes() == b"s2"
    assert len(hub.seen) == before + 1  # the blob was still there: only the listing is asked for


def test_an_empty_file_is_a_file(hub: Hub) -> None:
    hub.files["merges.txt"] = b""
    assert (locate("org/name").path / "merges.txt").read_bytes() == b""


def test_pickled_weights_are_refused(hub: Hub, tmp_path: Path) -> None:
    del hub.files["model.safetensors"]
    with pytest.raises(UnsupportedError, match="only pickled weights"):
        locate("org/name")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    for spec in (tmp_path, tmp_path / "pytorch_model.bin"):
        with pytest.raises(UnsupportedError, match="pickled"):
            locate(spec)


@pytest.mark.usefixtures("no_network")
def test_folders_and_files_are_taken_as_they_are(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    with pytest.raises(NotFoundError, match="neither safetensors nor GGUF"):
        locate(model)
    (model / "model.safetensors").write_bytes(b"\2" + bytes(7) + b"{}")  # no tensors
    with pytest.raises(NotFoundError, match=r"lacks config\.json"):
        locate(model)
    (model / "config.json").write_bytes(b"{}")
    assert locate(str(model)).path == model
    assert locate(model / "model.safetensors").source == "file"
    only = tmp_path / "only"
    only.mkdir()
    (only / "tiny-Q8_0.gguf").write_bytes(b"x")
    assert locate(only).path == only / "tiny-Q8_0.gguf"
    with pytest.raises(NotFoundError, match="no such file or folder"):
        locate(tmp_path / "nothing.gguf")


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("spec", ["", "a\0b", 7, "org/name@a/../x"])
def test_what_is_no_model_is_an_input_error(spec: object) -> None:
    with pytest.raises(InputError):
        locate(spec)  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("spec", ["all-MiniLM-L6-v3", "smolm2", "a/b/c"])
def test_an_unknown_name_suggests_the_nearest(spec: str) -> None:
    with pytest.raises(NotFoundError, match="no such model") as error:
        locate(spec)
    assert ("did you mean" in str(error.value)) == (spec != "a/b/c")


def test_local_models_are_listed_under_the_names_that_find_them(hub: Hub) -> None:
    locate("org/name")
    hub.files, hub.large = {**REPO, **GGUFS}, tuple(GGUFS)
    locate("org/name:Q6_K")
    models = {model.name: model for model in list_local()}
    assert set(models) == {"org/name", "org/name:Q6_K"}
    assert models["org/name:Q6_K"].bytes == len(b"one" + b"two!") and models["org/name:Q6_K"].format == "gguf"
    assert models["org/name"].bytes == sum(len(REPO[name]) for name in WANTED)
    for name, model in models.items():
        assert locate(name, offline=True).path == model.path


def test_the_shortest_name_wins_among_equal_quantisations() -> None:
    names = ["m-UD-Q4_K_M.gguf", "m-Q4_K_M.gguf", "m.i1-Q4_K_M.gguf"]
    assert choice.pick_gguf("x", names, "q4_k_m") == "m-Q4_K_M.gguf"
    assert choice.pick_gguf("x", ["b-Q8_0.gguf", "a-Q8_0.gguf"], None) == "a-Q8_0.gguf"


def test_a_description_is_part_of_a_model() -> None:
    names = ["config.json", "model.safetensors", "weft.json", "other.json"]
    assert sorted(choice.choose("x", names, None)) == ["config.json", "model.safetensors", "weft.json"]
