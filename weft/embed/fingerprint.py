"""The fingerprint of an embedder: vectors may be compared and stored together only if theirs are equal.

It is `weft2:` and the SHA-256 of the parts below as JSON. The parts are everything but the text that decides a vector:

    weights     the tensors: names, types, shapes, all bytes, those of dense layers included, and the model's settings
    tokenizer   the vocabulary in order, and what becomes of a text that has all of it, of words of every length, and of
                texts that show how a tokenizer cuts and normalises: whatever its files are called
    pooling, dense, prompts, dimension, normalise, compute, adapter

Paths and times of files, the number of threads and the machine are not part of it. A GGUF file and the safetensors
files it was made from have different fingerprints: their bytes differ and, mostly, their vectors.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft import digest, flags
from weft.frozen import frozen

if TYPE_CHECKING:
    from weft.runtime import Checkpoint
    from weft.text import Tokenizer

SCHEME = "weft2"
SHOWN_DIGITS = 8
PIECE_BYTES = 8 << 20  # of a tensor that one thread hashes at a time
RELEASE_BYTES = 4 * PIECE_BYTES  # read before mapped memory is released
# Digests are kept in weft's cache folder, keyed by path, size, inode and times of the files. A file that changed a
# moment ago could change again without a new timestamp, so its digest is not kept.
SETTLED_SECONDS = 2.0  # since the last change: the coarsest timestamps of a file system
MAX_KEPT = 256  # digests, about 200 bytes each
# Fields of config.json that do not affect vectors: who wrote it, how it was trained, names of classes.
NOT_THE_MODEL = (
    *("architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "use_cache"),
    *("gradient_checkpointing", "id2label", "label2id", "finetuning_task", "problem_type"),
)
TOGETHER = 256  # tokens of the vocabulary in one probe text
LONGEST_WORD = 256  # letters
# Letters of both cases and with accents, signs, digits, spaces, other scripts, an emoji of several code points.
PROBES = (
    "The quick brown fox, jumping over 13 lazy dogs; isn't it?",
    "  Two  spaces\tand a tab\nand a line ",
    "Ångström café naïve ΑΘΗΝΑ Straße ﬁne №42 2.5e-3",
    "日本語のテキスト 한국어 텍스트 العربية हिन्दी",
    "👩‍👩‍👧 unbelievableness def f(x): return x**2",
    "",
)


@frozen
class Fingerprint:
    """`str()` of it is `weft2:` and 64 hex digits."""

    weights: str
    tokenizer: str
    pooling: str
    dense: tuple[str, ...]  # the activation of each dense layer; its weights are with the others
    prompts: Mapping[str, str]
    dimension: int
    normalise: bool
    compute: str
    adapter: str = ""  # the digest of the adapter that `encode` named

    @property
    def parts(self) -> dict[str, Any]:
        """Its parts, to show them and to find where two differ."""
        return {**asdict(self), "dense": list(self.dense)}

    def changed(
        self, *, dimension: int | None = None, normalise: bool | None = None, adapter: str | None = None
    ) -> Fingerprint:
        """The fingerprint of the same vectors cut to `dimension` numbers, normalised, or made with an adapter."""
        given: dict[str, Any] = {"dimension": dimension, "normalise": normalise, "adapter": adapter}
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def differences(self, other: Fingerprint) -> list[str]:
        """The names of the parts that differ."""
        mine, theirs = self.parts, other.parts
        return [name for name in mine if mine[name] != theirs[name]]

    @cached_property
    def text(self) -> str:
        return f"{SCHEME}:{sha256(_canonical(self.parts)).hexdigest()}"

    def __str__(self) -> str:
        return self.text


def brief(fingerprint: str) -> str:
    """A fingerprint as people read it: the scheme and eight digits, enough to tell it from another."""
    scheme, colon, digits = fingerprint.rpartition(":")
    return f"{scheme}{colon}{digits[:SHOWN_DIGITS]}"


def weights_digest(checkpoint: Checkpoint) -> str:
    """SHA-256 of the model's settings and of all bytes of every tensor, which are read once for unchanged files."""
    settings = {k: v for k, v in checkpoint.config.items() if k not in NOT_THE_MODEL and not k.startswith("_")}
    tensors = kept_digest([file.path for file in checkpoint.files], lambda: _tensors_digest(checkpoint))
    hashed = sha256()
    digest.add(hashed, checkpoint.format, _canonical(settings), tensors)
    return hashed.hexdigest()


def _tensors_digest(checkpoint: Checkpoint) -> str:
    """SHA-256 of names, types, shapes, and of the SHA-256 of each piece: threads hash pieces in parallel."""
    from concurrent.futures import ThreadPoolExecutor

    hashed, since = sha256(), 0
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for name in sorted(checkpoint.tensors):
            view = checkpoint.tensors[name].view
            data = memoryview(view.buffer()).cast("B")
            digest.add(hashed, f"{name} {view.dtype} {view.shape}")
            for first in range(0, len(data), RELEASE_BYTES):
                part = data[first : first + RELEASE_BYTES]
                pieces = (part[at : at + PIECE_BYTES] for at in range(0, len(part), PIECE_BYTES))
                digest.add(hashed, *pool.map(lambda piece: sha256(piece).digest(), pieces))
                since += len(part)
                if since >= RELEASE_BYTES:
                    checkpoint.release()
                    since = 0
    checkpoint.release()
    return hashed.hexdigest()


def kept_digest(files: Sequence[Path], make: Callable[[], str], what: str = "weights") -> str:
    """The digest that `make` computes of `what` in these files, in hex; kept until one of the files changes."""
    before = _stamps(files)
    if before is None:
        return make()
    before.append([what])
    place = flags.cache_folder() / "digests" / sha256(json.dumps(before).encode()).hexdigest()[:32]
    with suppress(OSError, ValueError):
        stored = json.loads(place.read_text("ascii"))
        if isinstance(stored, list) and stored[:-1] == before and isinstance(stored[-1], str) and len(stored[-1]) == 64:
            return str(stored[-1])
    made = make()
    if _stamps(files) == before[:-1]:
        _keep(place, json.dumps([*before, made]))
    return made


def _stamps(files: Sequence[Path]) -> list[list[str | int]] | None:
    """Paths, sizes, inodes and times of the files; None if a change of content might not show in them."""
    found: list[list[str | int]] = []
    try:
        for file in files:
            path = file.resolve()
            at = path.stat()
            if time.time() - max(at.st_mtime, at.st_ctime) < SETTLED_SECONDS:
                return None
            found.append([str(path), at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns])
    except OSError:
        return None
    return found or None


def _keep(place: Path, text: str) -> None:
    """Write a file under another name and rename it, so that no reader sees half of it; delete the oldest files."""
    temporary = place.with_name(f".{place.name}.{os.urandom(4).hex()}.part")
    with suppress(OSError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.write_text(text, "ascii")
        os.replace(temporary, place)
        others = sorted(place.parent.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for path in others[:-MAX_KEPT]:
            path.unlink(missing_ok=True)


def tokenizer_digest(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> str:
    """SHA-256 of a tokenizer's behaviour; "none" for a model without one."""
    if tokenizer is None:
        return "none"
    files = [file.path for file in checkpoint.files]
    if checkpoint.path.is_dir():
        weights = {path.name for path in files}
        files = sorted(path for path in checkpoint.path.iterdir() if path.is_file() and path.name not in weights)
    hashed = sha256()
    digest.add(hashed, kept_digest(files, lambda: _vocabulary_digest(tokenizer), "tokenizer"))
    digest.add(hashed, _canonical([list(map(int, tokenizer.encode(probe))) for probe in PROBES]))
    return hashed.hexdigest()


def _vocabulary_digest(tokenizer: Tokenizer) -> str:
    """SHA-256 of the vocabulary and of the ids of texts made from it, which show merges, scores and length limits."""
    hashed = sha256()
    pieces: Iterable[str | None] = map(tokenizer.token, range(tokenizer.vocab_size))
    digest.add(hashed, "\0".join(piece or "" for piece in pieces))
    all_bytes = tokenizer.token_bytes()
    starts = range(0, len(all_bytes), TOGETHER)
    texts = [b"".join(all_bytes[at : at + TOGETHER]).decode("utf-8", "replace") for at in starts]
    texts.append(" ".join("x" * length for length in range(1, LONGEST_WORD + 1)))
    for ids in tokenizer.encode_batch(texts, add_special=False):
        digest.add(hashed, ids.astype("<i4").tobytes())
    return hashed.hexdigest()


def _canonical(value: Any) -> bytes:
    """JSON that is the same for equal values: keys sorted, nothing but ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode("ascii")
