"""A download ends with the right bytes under the final name or with nothing there, whatever the server does."""

import hashlib
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import COMMIT, Hub, git_sha1, serving, sha256

from weft.errors import ChecksumError, DownloadError, NotFoundError
from weft.weights.sources import transfer
from weft.weights.sources.download import Expected, download

DATA = random.Random(7).randbytes(3_000_000)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setenv("no_proxy", "*")
    with serving(Hub("org/name", {"model.bin": DATA}, large=("model.bin",))) as hub:
        yield hub


def fetch(hub: Hub, target: Path, **given: object) -> None:
    options: dict = {"name": "model.bin", **given}
    expected = options.pop("expected", Expected(len(DATA), sha256(DATA)))
    download(f"{hub.address}/org/name/resolve/{COMMIT}/model.bin", target, expected, **options)


def parts(target: Path) -> list[Path]:
    return sorted(target.parent.glob("*.part"))


def test_bytes_arrive_and_progress_counts_up_to_the_size(hub: Hub, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    fetch(hub, tmp_path / "blob", progress=lambda *event: seen.append(event))
    assert (tmp_path / "blob").read_bytes() == DATA
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert seen[0] == ("model.bin", 0, len(DATA)) and seen[-1] == ("model.bin", len(DATA), len(DATA))
    assert not parts(tmp_path / "blob")


def test_a_finished_file_is_not_asked_for_again(hub: Hub, tmp_path: Path) -> None:
    fetch(hub, tmp_path / "blob")
    fetch(hub, tmp_path / "blob")
    assert len(hub.seen) == 1


def test_a_cut_connection_is_resumed_where_it_broke(hub: Hub, tmp_path: Path) -> None:
    hub.behaviour.drop_after, hub.behaviour.drops = 1_000_000, 2
    fetch(hub, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == DATA
    assert [headers.get("Range") for _, _, headers in hub.seen] == [None, "bytes=1000000-", "bytes=2000000-"]
    assert hub.bytes_sent == len(DATA)


def test_a_server_that_keeps_cutting_is_given_up_and_the_part_stays(hub: Hub, tmp_path: Path) -> None:
    hub.behaviour.drop_after = 0
    with pytest.raises(DownloadError, match="gave up after 5 attempts"):
        fetch(hub, tmp_path / "blob")
    assert not (tmp_path / "blob").exists()
    assert len(hub.seen) == 5


def test_an_interrupted_run_is_continued_by_the_next(hub: Hub, tmp_path: Path) -> None:
    def stop(name: str, done: int, total: int | None) -> None:
        if done > 1_500_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(hub, tmp_path / "blob", progress=stop)
    (part,) = parts(tmp_path / "blob")
    kept = part.stat().st_size
    assert kept > 1_500_000 and not (tmp_path / "blob").exists()
    fetch(hub, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == DATA
    assert hub.seen[-1][2]["Range"] == f"bytes={kept}-"
    assert not parts(tmp_path / "blob")


@pytest.mark.parametrize("fault", ["ignore_range", "wrong_range"])
def test_a_server_that_does_not_honour_range_makes_the_download_start_again(
    hub: Hub, tmp_path: Path, fault: str
) -> None:
    setattr(hub.behaviour, fault, True)
    hub.behaviour.drop_after, hub.behaviour.drops = 1_000_000, 1
    fetch(hub, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == DATA
    assert [headers.get("Range") for _, _, headers in hub.seen] == [None, "bytes=1000000-", None]


def test_wrong_bytes_leave_nothing_behind(hub: Hub, tmp_path: Path) -> None:
    hub.behaviour.wrong_bytes = True
    with pytest.raises(ChecksumError, match="sha256"):
        fetch(hub, tmp_path / "blob")
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_length_is_refused_before_its_bytes_are_read(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ChecksumError, match="3000000 bytes on the server, expected 17"):
        fetch(hub, tmp_path / "blob", expected=Expected(17, "0" * 64))
    assert not (tmp_path / "blob").exists()


def test_small_files_are_checked_against_gits_digest(hub: Hub, tmp_path: Path) -> None:
    fetch(hub, tmp_path / "good", expected=Expected(len(DATA), git_sha1=git_sha1(DATA)))
    with pytest.raises(ChecksumError, match="git sha1"):
        fetch(hub, tmp_path / "bad", expected=Expected(len(DATA), git_sha1="0" * 40))
    assert [path.name for path in tmp_path.iterdir()] == ["good"]


def test_a_damaged_part_costs_a_fresh_start_and_no_more(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "blob.00000000.part").write_bytes(b"\0" * 1_000_000)
    fetch(hub, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == DATA
    assert len(hub.seen) == 2 and not parts(tmp_path / "blob")


def test_without_a_digest_nothing_is_resumed(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "blob.00000000.part").write_bytes(b"\0" * 1_000_000)
    fetch(hub, tmp_path / "blob", expected=Expected(len(DATA)))
    assert (tmp_path / "blob").read_bytes() == DATA
    assert "Range" not in hub.seen[0][2]


def test_busy_answers_are_tried_again_and_refusals_are_not(hub: Hub, tmp_path: Path) -> None:
    hub.behaviour.statuses = [503, 429]
    fetch(hub, tmp_path / "blob")
    assert len(hub.seen) == 3
    for status, kind, words in [(403, DownloadError, "access refused"), (404, NotFoundError, "not found")]:
        hub.seen.clear()
        hub.behaviour.statuses = [status]
        with pytest.raises(kind, match=words):
            fetch(hub, tmp_path / "other")
        assert len(hub.seen) == 1


def test_the_token_stays_with_the_host_it_was_given_for(hub: Hub, tmp_path: Path) -> None:
    with serving(Hub("org/name", {"model.bin": DATA})) as mirror:
        hub.behaviour.redirect_to = mirror.address
        fetch(hub, tmp_path / "blob", token="secret")
        assert (tmp_path / "blob").read_bytes() == DATA
        assert hub.seen[0][2]["Authorization"] == "Bearer secret"
        assert all("Authorization" not in headers for _, _, headers in mirror.seen) and mirror.seen


def test_a_redirect_on_the_same_host_keeps_the_token(hub: Hub) -> None:
    hub.behaviour.moved = {"/old": f"/api/models/org/name/revision/{COMMIT}"}
    for method in ("GET", "HEAD"):
        hub.seen.clear()
        with transfer.request(f"{hub.address}/old", token="secret", method=method) as response:
            assert response.status == 200
        assert [seen[2].get("Authorization") for seen in hub.seen] == ["Bearer secret"] * 2
        assert hub.seen[1][0] == method


def test_a_host_that_does_not_answer_fails_once_and_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("slept"))
    with serving(Hub("org/name", {})) as gone:
        pass
    with pytest.raises(transfer.UnreachableError, match=r"cannot reach 127\.0\.0\.1"):
        fetch(gone, tmp_path / "blob")


def test_a_full_disk_is_noticed_before_the_download(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="make room"):
        fetch(hub, tmp_path / "blob", expected=Expected(1 << 60, "0" * 64))
    assert hub.seen == []


@pytest.mark.parametrize("seed", range(60))
def test_the_target_is_right_or_absent_whatever_goes_wrong(hub: Hub, tmp_path: Path, seed: int) -> None:
    """Faults and leftovers drawn at random; a part of the right file may be continued, any other costs a restart."""
    draw = random.Random(seed)
    hub.behaviour.drop_after = draw.choice([None, 0, 1, 70_000, 2_999_999])
    hub.behaviour.drops = draw.randrange(7)
    hub.behaviour.ignore_range = draw.random() < 0.3
    hub.behaviour.wrong_range = draw.random() < 0.3
    hub.behaviour.wrong_bytes = draw.random() < 0.2
    hub.behaviour.statuses = draw.choices([500, 503, 429, 416, 404, 403], k=draw.randrange(3))
    for index in range(draw.randrange(3)):
        kept = bytearray(DATA[: draw.randrange(len(DATA) + 100)])
        if kept and draw.random() < 0.4:
            kept[draw.randrange(len(kept))] ^= 1
        (tmp_path / f"blob.{index:08x}.part").write_bytes(kept)
    try:
        fetch(hub, tmp_path / "blob")
    except (DownloadError, NotFoundError):
        assert not (tmp_path / "blob").exists()
    else:
        assert (tmp_path / "blob").read_bytes() == DATA


CHILD = """
import sys
from pathlib import Path
from weft.weights.sources.download import Expected, download
from weft.weights.sources.folders import lock
url, target, size, digest, locked = sys.argv[1:]
target = Path(target)
def run():
    download(url, target, Expected(int(size), digest), name="model.bin")
if locked == "yes":
    with lock(target.with_suffix(".lock")):
        run()
else:
    run()
"""


@pytest.mark.parametrize("locked", ["yes", "no"])
def test_two_processes_end_with_one_right_file(hub: Hub, tmp_path: Path, locked: str) -> None:
    """With a lock one of them downloads; without one both may, and the result is the same."""
    url = f"{hub.address}/org/name/resolve/{COMMIT}/model.bin"
    given = [url, str(tmp_path / "blob"), str(len(DATA)), sha256(DATA), locked]
    children = [subprocess.Popen([sys.executable, "-c", CHILD, *given]) for _ in range(2)]
    assert [child.wait(60) for child in children] == [0, 0]
    assert hashlib.sha256((tmp_path / "blob").read_bytes()).hexdigest() == sha256(DATA)
    assert not parts(tmp_path / "blob")
    if locked == "yes":
        assert len(hub.seen) == 1


def test_a_killed_process_leaves_a_part_that_the_next_run_continues(hub: Hub, tmp_path: Path) -> None:
    code = CHILD.replace(
        'name="model.bin")',
        'name="model.bin", progress=lambda n, done, t: done > 1_500_000 and __import__("os").kill('
        '__import__("os").getpid(), 9))',
    )
    url = f"{hub.address}/org/name/resolve/{COMMIT}/model.bin"
    given = [url, str(tmp_path / "blob"), str(len(DATA)), sha256(DATA), "yes"]
    child = subprocess.run([sys.executable, "-c", code, *given], check=False)
    assert child.returncode == -9 and not (tmp_path / "blob").exists()
    kept = parts(tmp_path / "blob")[0].stat().st_size
    assert kept >= 1_000_000
    fetch(hub, tmp_path / "blob")
    assert hub.seen[-1][2]["Range"] == f"bytes={kept}-"
    assert (tmp_path / "blob").read_bytes() == DATA
