"""Pictures in requests for vectors: every form gives the library's vectors, and hostile ones get errors that name the
field."""

from __future__ import annotations

import io
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tiny_towers

import weft
from weft.errors import InputError
from weft.serve import BackgroundServer, Limits, ModelSpec, Settings
from weft.serve.http.faults import Fault
from weft.serve.pictures.fetching import Fetcher, is_public, target_of
from weft.serve.settings import host_entry, read_toml

pytestmark = pytest.mark.skipif(find_spec("PIL") is None, reason="Pillow is not installed")
Ask = Callable[..., httpx.Response]


def png(array: np.ndarray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


FILES = [png(array) for array in tiny_towers.pictures()] if find_spec("PIL") else []
PLAIN = [b64encode(file).decode() for file in FILES]
URLS = [f"data:image/png;base64,{text}" for text in PLAIN]


class Pictures(BaseHTTPRequestHandler):
    """A host of pictures, well behaved or not by the path."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        places = {
            "/moved": "/a.png",
            "/loop": "/loop",
            "/away": "http://example.org/a.png",
            "/inside": "http://localhost/",
        }
        if path in places:
            self.send_response(302)
            self.send_header("Location", places[path])
            self.end_headers()
        elif path == "/a.png":
            self._send(FILES[0])
        elif path == "/large":
            self._send(b"\0" * 100_000)
        elif path == "/endless":
            self.send_response(200)
            self.end_headers()
            for _ in range(100):
                self.wfile.write(b"\0" * 10_000)
        elif path == "/short":
            self._send(FILES[0], more=100)
        elif path == "/slow":
            self.send_response(200)
            self.end_headers()
            for _ in range(600):
                self.wfile.write(b"\0")
                self.wfile.flush()
                time.sleep(0.1)
        elif path == "/page":
            self._send(b"<html>")
        else:
            self.send_error(404)

    def _send(self, body: bytes, more: int = 0) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) + more))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass

    def handle(self) -> None:
        with suppress(OSError):  # the client hung up
            super().handle()


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    """The address and port of a host of pictures."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pictures)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("seen")
    return {kind: tiny_towers.write_folder(root / kind, kind, tokenizer=True) for kind in ("clip", "siglip", "siglip2")}


@pytest.fixture(scope="module")
def libraries(folders: dict[str, Path]) -> dict[str, weft.Embedder]:
    return {kind: weft.Embedder(str(folder), threads=1) for kind, folder in folders.items()}


@pytest.fixture(scope="module")
def running(folders: dict[str, Path], specs: tuple[ModelSpec, ...], host: str) -> Iterator[BackgroundServer]:
    seeing = tuple(ModelSpec(kind, str(folder), {"threads": 1}) for kind, folder in folders.items())
    texts = tuple(spec for spec in specs if spec.name == "bert")
    limits = Limits(picture_bytes=60_000, picture_pixels=10_000, picture_fetch_s=3.0)
    settings = Settings(models=(*seeing, *texts), port=0, limits=limits, image_hosts=(host, "localhost"))
    with BackgroundServer(settings) as server:
        yield server


@pytest.fixture(scope="module")
def ask(running: BackgroundServer) -> Ask:
    def post(given: Any, model: str = "siglip", **more: Any) -> httpx.Response:
        body = {"model": model, "input": given, **more}
        return httpx.post(f"{running.url}/v1/embeddings", json=body, timeout=120)

    return post


def vectors(answer: httpx.Response) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    return np.array([row["embedding"] for row in answer.json()["data"]], np.float32)


def refusal(answer: httpx.Response) -> tuple[str, str, str]:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["param"], error["code"], error["message"]


FORMS = {
    "image": [{"image": url} for url in URLS],
    "base64": [{"image": text} for text in PLAIN],
    "part": [{"type": "image_url", "image_url": {"url": url, "detail": "low"}} for url in URLS],
    "input part": [{"type": "input_image", "image_url": url} for url in URLS],
    "data URLs": URLS,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_picture_has_the_library_s_vectors(ask: Ask, libraries: Any, form: str) -> None:
    found = vectors(ask(FORMS[form]))
    assert np.array_equal(found, libraries["siglip"].encode(FILES))


@pytest.mark.parametrize("kind", ["clip", "siglip", "siglip2"])
def test_texts_and_pictures_mix_for_every_model(ask: Ask, libraries: Any, kind: str) -> None:
    given = ["a red cat", {"image": URLS[1]}, {"text": "the dog"}, {"image": URLS[0]}]
    answer = ask(given, kind)
    assert np.array_equal(vectors(answer), libraries[kind].encode(["a red cat", FILES[1], "the dog", FILES[0]]))
    assert answer.headers["weft-fingerprint"] == str(libraries[kind].fingerprint)
    assert answer.json()["usage"]["prompt_tokens"] > 9
    assert np.array_equal(vectors(ask(["a red cat", "a dog"], kind)), libraries[kind].encode(["a red cat", "a dog"]))


def test_a_modality_says_what_strings_are(ask: Ask, libraries: Any) -> None:
    library = libraries["siglip"]
    assert np.array_equal(vectors(ask(PLAIN[:2], modality="image")), library.encode(FILES[:2]))
    assert np.array_equal(vectors(ask(URLS[0], modality="image")), library.encode(FILES[:1]))
    assert np.array_equal(vectors(ask("cat", modality="text")), library.encode(["cat"]))
    assert np.array_equal(vectors(ask({"image": URLS[2]})), library.encode(FILES[2:3]))
    many = vectors(ask([{"image": URLS[i % 4]} for i in range(130)]))  # more than one group
    assert np.array_equal(many, library.encode(FILES)[np.arange(130) % 4])


def test_base64_of_vectors(ask: Ask, libraries: Any) -> None:
    import base64

    answer = ask([{"image": URLS[0]}], encoding_format="base64")
    found = np.frombuffer(base64.b64decode(answer.json()["data"][0]["embedding"]), "<f4")
    assert np.array_equal(found, libraries["siglip"].encode(FILES[0]))


@pytest.mark.parametrize(
    "given, more, param, code, said",
    [
        ([{"image": ""}], {}, "input[0].image", "invalid_image", "must not be empty"),
        (["", "a"], {"modality": "image"}, "input[0]", "invalid_image", "must not be empty"),
        ([{"image": "no base64!"}], {}, "input[0].image", "invalid_image", "must be a data: URL"),
        ([{"image": "data:image/png,abc"}], {}, "input[0].image", "invalid_image", "data: URL in base64"),
        ([{"image": "data:image/png;base64,@@"}], {}, "input[0].image", "invalid_image", "not base64"),
        (["a", {"image": "AAAA"}], {}, "input[1].image", "invalid_image", "is not a PNG, JPEG, WEBP, GIF or BMP"),
        ([{"image": "A" * 100_000}], {}, "input[0].image", "invalid_image", "at most 60000 are allowed"),
        ([{"image": "file:///etc/passwd"}], {}, "input[0].image", "image_not_fetched", "begins with https://"),
        ([{"image": "http://a@127.0.0.1/"}], {}, "input[0].image", "image_not_fetched", "without a name and a"),
        ([{"image": "http://[::1"}], {}, "input[0].image", "image_not_fetched", "not a valid address"),
        ([{"image": "http://127.0.0.1:22/"}], {}, "input[0].image", "image_host_not_allowed", "does not fetch"),
        ([{"image": "https://example.org/a.png"}], {}, "input[0].image", "image_host_not_allowed", "a data: URL"),
        ([{"image": "http://169.254.169.254/latest"}], {}, "input[0].image", "image_host_not_allowed", "does not"),
        ([{"image": "http://localhost/a.png"}], {}, "input[0].image", "image_host_not_allowed", "private address"),
        ([{}], {}, "input[0]", None, "must have one of"),
        ([{"text": "a", "image": URLS and URLS[0]}], {}, "input[0]", None, "must have one of"),
        ([{"type": "text", "image": "x"}], {}, "input[0].type", None, "but the item has image"),
        ([{"image": 3}], {}, "input[0].image", "invalid_value", "must be a string"),
        ([{"picture": "x"}], {}, "input[0].picture", "unknown_parameter", "is not a field"),
        ([1, {"image": "x"}], {}, "input", "invalid_value", "mixes token ids"),
        (["a"], {"modality": "audio"}, "modality", "invalid_value", "not possible"),
        ([{"image": "x"}], {"model": "bert"}, "input[0].image", "no_images", "embeds texts only"),
        ([{"image": "x"}], {"adapter": "a"}, "adapter", None, "for texts"),
        ([{"image": "x"}] * 3000, {}, "input", None, "at most 2048"),
    ],
)
def test_hostile_bodies_are_refused_by_name(
    ask: Ask, given: Any, more: dict[str, Any], param: str, code: str | None, said: str
) -> None:
    found = refusal(ask(given, **more))
    assert found[:2] == (param, code) and said in found[2], found
    assert "/tmp" not in found[2]


def test_pixels_are_limited_before_they_are_decoded(ask: Ask) -> None:
    large = png(np.zeros((101, 100, 3), np.uint8))
    found = refusal(ask([{"image": b64encode(large).decode()}]))
    assert found[:2] == ("input[0].image", "invalid_image") and "at most 10000 are allowed" in found[2]
    for damaged in (FILES[0][:60], FILES[0][:40] + b"\xff" * 30, b"GIF89a" + b"\xff" * 40):
        assert refusal(ask([{"image": b64encode(damaged).decode()}]))[1] == "invalid_image"


def test_too_many_tokens_of_pictures_are_refused_before_any_is_decoded(serve: Any, folders: dict[str, Path]) -> None:
    running = serve(models=(ModelSpec("siglip", str(folders["siglip"]), {"threads": 1}),), limits={"embed_tokens": 20})
    body = {"model": "siglip", "input": [{"image": "not decoded"}] * 3}
    answer = httpx.post(f"{running.url}/v1/embeddings", json=body, timeout=60)
    assert answer.status_code == 400 and "has 27 tokens in total; at most 20" in answer.text


def test_a_picture_of_a_named_host_is_fetched(ask: Ask, libraries: Any, host: str) -> None:
    for path in ("a.png", "moved", "a.png?width=3"):
        found = vectors(ask([{"image": f"http://{host}/{path}"}]))
        assert np.array_equal(found, libraries["siglip"].encode(FILES[:1]))


@pytest.mark.parametrize(
    "path, code, said",
    [
        ("missing", "image_not_fetched", "answered 404"),
        ("loop", "image_not_fetched", "more than 3 times"),
        ("away", "image_host_not_allowed", "does not fetch"),
        ("inside", "image_host_not_allowed", "private address"),
        ("large", "image_not_fetched", "more than 60000 bytes"),
        ("endless", "image_not_fetched", "more than 60000 bytes"),
        ("short", "image_not_fetched", "could not be fetched"),
        ("page", "invalid_image", "is not a PNG"),
    ],
)
def test_what_a_host_sends_is_not_trusted(ask: Ask, host: str, path: str, code: str, said: str) -> None:
    found = refusal(ask([{"image": f"http://{host}/{path}"}]))
    assert found[:2] == ("input[0].image", code) and said in found[2], found


def test_a_host_that_drips_bytes_is_not_waited_for(host: str) -> None:
    fetcher = Fetcher(Settings(image_hosts=(host,), limits=Limits(picture_fetch_s=0.5)))
    with pytest.raises(Fault, match=r"could not be fetched within 0\.5 s"):
        fetcher._fetch(f"http://{host}/slow", "input")
    fetcher.close()


def test_without_named_hosts_no_address_is_fetched(host: str) -> None:
    fetcher = Fetcher(Settings())
    with pytest.raises(Fault, match="this server fetches no pictures: send the picture as a data: URL") as caught:
        fetcher.check(f"http://{host}/a.png", "input")
    assert caught.value.code == "image_host_not_allowed"
    fetcher.close()


def test_a_name_is_judged_by_all_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(2, 1, 6, "", (address, 80)) for address in ("93.184.215.14", "10.0.0.1")]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: rows)
    fetcher = Fetcher(Settings(image_hosts=("pictures.example.org",)))
    with pytest.raises(Fault, match="a name of a private address"):
        fetcher._fetch("http://pictures.example.org/a.png", "input")
    fetcher.close()


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.1",
        "172.16.9.9",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "fe80::1",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "64:ff9b::a00:1",
        "2002:7f00:1::",
        "2001:0:53aa:64c::1",
        "::",
    ],
)
def test_addresses_of_no_internet_are_private(address: str) -> None:
    assert not is_public(ip_address(address))


def test_public_addresses_are_public() -> None:
    assert all(is_public(ip_address(one)) for one in ("93.184.215.14", "2606:2800:21f::1", "::ffff:8.8.8.8"))


def test_a_host_is_named_with_or_without_its_port() -> None:
    assert host_entry("Pictures.Example.org.") == "pictures.example.org"
    assert host_entry("::1") == "[::1]" and host_entry("[::1]:80") == "[::1]:80"
    assert [host_entry(bad) for bad in ("", "http://a", "a b", "a/b", "*.a", "a@b", "a:999999")] == [None] * 7
    assert target_of("http://a.b:80/", "x").names == ("a.b", "a.b:80")
    assert target_of("https://A.b.:80/?c", "x").names == ("a.b:80",)
    with pytest.raises(InputError, match="must be names of hosts"):
        Settings(models=(ModelSpec("a", "a"),), image_hosts=("http://a",)).checked()


def test_hosts_of_pictures_are_a_setting(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('image_hosts = ["pictures.example.org"]\n[limits]\npicture_bytes = 1000\n')
    found = read_toml(tmp_path / "a.toml")
    assert found["image_hosts"] == ("pictures.example.org",) and found["limits"].picture_bytes == 1000
