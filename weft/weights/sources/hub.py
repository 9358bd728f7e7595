"""Talking to the Hugging Face hub: what a repository holds, and bringing files of it into the shared cache."""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from weft import flags
from weft.errors import ChecksumError, DownloadError, NotFoundError
from weft.frozen import frozen
from weft.weights.sources import choice, transfer
from weft.weights.sources.catalog import File
from weft.weights.sources.download import Expected, download
from weft.weights.sources.folders import hub_cache, hub_token, inside, lock
from weft.weights.sources.progress import Progress, silent
from weft.weights.sources.snapshots import COMMIT, repo_folder

LISTING_BYTES = 64 << 20  # the longest listing that is accepted
_ETAG = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@frozen
class Remote:
    """One file of a repository; `etag` names its blob and is its digest."""

    name: str
    size: int
    etag: str

    def expected(self, pin: File | None) -> Expected:
        large = len(self.etag) == 64
        sha256 = self.etag if large else pin.sha256 if pin else None
        return Expected(self.size, sha256, None if large else self.etag)


@frozen
class Listing:
    repo: str
    commit: str
    rows: Mapping[str, Mapping[str, Any]]


def _json(url: str) -> Any:
    def read() -> bytes:
        with transfer.request(url, token=hub_token()) as response:
            body = transfer.read(response, LISTING_BYTES + 1)
            if response.length and len(body) <= LISTING_BYTES:
                raise transfer.TransientError("hub", f"the listing {url} ended early")
            return body

    body = transfer.patiently(read)
    try:
        if len(body) > LISTING_BYTES:
            raise ValueError("too long")
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _no_listing(url, f" ({error})") from error


def _no_listing(url: str, why: str = "") -> DownloadError:
    return DownloadError("hub", f"{url} did not return the listing of a repository{why}", advice="check HF_ENDPOINT")


@contextmanager
def _access(repo: str) -> Iterator[None]:
    """Add to an AccessError of the block how to get access to `repo`."""
    try:
        yield
    except transfer.AccessError as error:
        token = "the token in use was not granted access" if hub_token() else "then set HF_TOKEN to a token of yours"
        raise transfer.AccessError(
            "hub",
            f"{repo} is gated, private or does not exist (HTTP {error.code})",
            advice=f"accept its licence on {flags.get('HF_ENDPOINT')}/{repo}; {token}",
            code=error.code,
        ) from error


def listing(repo: str, revision: str) -> Listing:
    """What the repository holds at `revision`, in one request."""
    endpoint = flags.get("HF_ENDPOINT")
    url = f"{endpoint}/api/models/{quote(repo)}/revision/{quote(revision, safe='')}?blobs=true"
    try:
        with _access(repo):
            answer = _json(url)
    except NotFoundError as error:
        raise NotFoundError(
            "hub", f"there is no repository {repo} with a revision {revision}", advice="check both names"
        ) from error
    commit = answer.get("sha") if isinstance(answer, dict) else None
    siblings = answer.get("siblings") if isinstance(answer, dict) else None
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit) or not isinstance(siblings, list):
        raise _no_listing(url)
    rows = {
        row["rfilename"]: row for row in siblings if isinstance(row, dict) and isinstance(row.get("rfilename"), str)
    }
    return Listing(repo, commit, rows)


def _address(found: Listing, name: str) -> str:
    return f"{flags.get('HF_ENDPOINT')}/{quote(found.repo)}/resolve/{found.commit}/{quote(name)}"


def remote(found: Listing, name: str) -> Remote:
    """Size and digest of one file: from the listing, or by a request where a mirror's listing has none."""
    row = found.rows[name]
    large = row.get("lfs")
    size, etag = row.get("size"), row.get("blobId")
    if isinstance(large, dict):
        size, etag = large.get("size"), large.get("sha256")
    if size is None or etag is None:
        size, etag = _ask(found, name)
    if not isinstance(size, int) or size < 0 or not isinstance(etag, str) or not _ETAG.fullmatch(etag):
        raise DownloadError(
            "hub",
            f"{found.repo}/{name} is listed without a usable size and digest: {size!r}, {etag!r:.80}",
            advice="check HF_ENDPOINT",
        )
    return Remote(name, size, etag)


def _ask(found: Listing, name: str) -> tuple[int | None, str]:
    """Size and digest from the headers of a file; a redirect describes large files in headers of its own."""
    url = _address(found, name)
    with _access(found.repo):
        opened = transfer.patiently(lambda: transfer.request(url, token=hub_token(), method="HEAD"))
    with opened as answer:
        etag = answer.headers.get("X-Linked-ETag") or answer.headers.get("ETag") or ""
        length = answer.headers.get("X-Linked-Size")
        if length is None and answer.status == 200:
            length = answer.headers.get("Content-Length")
    return int(length) if length and length.isdigit() else None, etag.removeprefix("W/").strip('"')


def fetch(
    repo: str,
    revision: str,
    found: Listing,
    names: Iterable[str],
    *,
    pins: Mapping[str, File] | None = None,
    progress: Progress = silent,
) -> Path:
    """Download the named files into the cache and return the snapshot folder. `pins` are contents known beforehand.

    The weights come last, so a snapshot that has its weights is complete.
    """
    root = repo_folder(repo)
    folder = root / "snapshots" / found.commit
    wanted = [(inside(folder, name), remote(found, name)) for name in names]  # every name is checked before any byte
    last = choice.weights(file.name for _, file in wanted)
    for target, file in sorted(wanted, key=lambda pair: (pair[1].name in last, pair[1].size)):
        pin = (pins or {}).get(file.name)
        _compare(file, pin)
        blob = root / "blobs" / file.etag
        with lock(hub_cache() / ".locks" / root.name / f"{file.etag}.lock"):
            url = _address(found, file.name)
            with _access(repo):
                download(url, blob, file.expected(pin), name=file.name, token=hub_token(), progress=progress)
            _link(blob, target)
    if revision != found.commit:
        _write_ref(root, revision, found.commit)
    return folder


def _compare(file: Remote, pin: File | None) -> None:
    """Refuse a file that cannot be the pinned one before downloading it."""
    if pin is None:
        return
    digest = file.etag if len(file.etag) == 64 else pin.sha256
    if pin.bytes not in (None, file.size) or pin.sha256 not in (None, digest):
        raise ChecksumError(
            "hub",
            f"{file.name} is not the pinned file: the hub has {file.size} bytes, {file.etag}; expected {pin.bytes} "
            f"bytes, sha256 {pin.sha256}",
            advice="nothing was downloaded",
        )


def _link(blob: Path, target: Path) -> None:
    """A relative link from the snapshot to the blob; a hard link or a copy where the system has no links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_file() and target.stat().st_size == blob.stat().st_size:
        return
    own = target.with_name(f"{target.name}.{os.getpid()}.link")
    own.unlink(missing_ok=True)
    try:
        own.symlink_to(os.path.relpath(blob, target.parent))
    except OSError:
        try:
            os.link(blob, own)
        except OSError:
            shutil.copyfile(blob, own)
    os.replace(own, target)


def _write_ref(root: Path, revision: str, commit: str) -> None:
    ref = inside(root / "refs", revision)
    ref.parent.mkdir(parents=True, exist_ok=True)
    own = ref.with_name(f"{ref.name}.{os.getpid()}.new")
    own.write_text(commit, encoding="ascii")
    os.replace(own, ref)


def pull(repo: str, revision: str, quant: str | None, progress: Progress = silent) -> tuple[Path, str]:
    """Download what this machine lacks of `repo` at `revision`; returns what to load, and its commit."""
    found = listing(repo, revision)
    names = choice.choose(repo, list(found.rows), quant)
    folder = fetch(repo, revision, found, names, progress=progress)
    return choice.entry_point(folder, names), found.commit
