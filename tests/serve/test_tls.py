"""A server with a certificate speaks HTTPS, takes renewed files, and refuses files that it cannot use by name."""

import json
import os
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest
from idleness import wait_for
from test_process import Process

from weft.errors import InputError, NotFoundError, WeftError
from weft.serve import BackgroundServer, ModelSpec, Settings
from weft.serve.certificate import Certificate
from weft.serve.settings import read_toml

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")

Files = tuple[Path, Path]


def make(folder: Path, name: str, *options: str) -> Files:
    """A self-signed certificate for this machine, and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-days", "2"]
    command += ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command += ["-keyout", str(key), "-out", str(cert), *(options or ("-nodes",))]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> dict[str, Files]:
    folder = tmp_path_factory.mktemp("certificates")
    return {name: make(folder, name) for name in ("first", "second")}


def trusting(pair: Files) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(pair[0]))


def common_name(port: int) -> str:
    """The name in the certificate that the server shows."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=10) as raw, context.wrap_socket(raw) as wrapped:
        found = wrapped.getpeercert(binary_form=True)
    assert found is not None
    return "first" if b"first" in found else "second"


def test_requests_streams_and_the_sign_in_go_over_tls(serve, pairs):
    cert, key = pairs["first"]
    running = serve(tls_cert=cert, tls_key=key, keys=("a-key",))
    assert running.url.startswith("https://")
    with httpx.Client(base_url=running.url, verify=trusting(pairs["first"]), timeout=60) as client:
        client.headers["authorization"] = "Bearer a-key"
        body = {"model": "tiny", "prompt": "a", "max_tokens": 3, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            assert [line for line in answer.iter_lines() if line][-1] == "data: [DONE]"
        origin = {"origin": running.url}
        assert client.get("/v1/models", headers=origin).status_code == 200
        signed = client.post("/weft/sign-in", data={"key": "a-key"}, headers=origin)
        assert signed.status_code == 303 and "; Secure" in signed.headers["set-cookie"]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{running.url}/health", verify=trusting(pairs["second"]))
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{running.port}/health")


def test_a_handshake_that_does_not_come_is_given_up(serve, pairs):
    cert, key = pairs["first"]
    running = serve(tls_cert=cert, tls_key=key, limits={"header_s": 0.2})
    with socket.create_connection(("127.0.0.1", running.port), timeout=30) as raw:
        assert raw.recv(10) == b""


def test_renewed_files_are_taken_by_connections_to_come(tmp_path, pairs, serve):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def write(number: int, *, certificate: str, private: str) -> None:
        """Write the files with a time of their own, as clocks may be coarse."""
        cert.write_bytes(pairs[certificate][0].read_bytes())
        key.write_bytes(pairs[private][1].read_bytes())
        for path in (cert, key):
            os.utime(path, ns=(number, number))

    write(1, certificate="first", private="first")
    loaded = Certificate(cert, key)
    assert not loaded.refresh()
    write(2, certificate="second", private="first")
    assert [loaded.refresh(), loaded.refresh(), loaded.refresh()] == [
        False,
        False,
        False,
    ]  # they do not belong together
    write(3, certificate="second", private="second")
    assert [loaded.refresh(), loaded.refresh(), loaded.refresh()] == [False, True, False]
    cert.unlink()
    assert [loaded.refresh(), loaded.refresh()] == [False, False]
    write(4, certificate="first", private="first")
    running = serve(tls_cert=cert, tls_key=key)
    with httpx.Client(base_url=running.url, verify=trusting(pairs["first"])) as client:
        assert client.get("/health").status_code == 200 and common_name(running.port) == "first"
        write(5, certificate="second", private="second")
        wait_for(lambda: common_name(running.port) == "second", 30)
        assert client.get("/health").status_code == 200  # on the connection that was open


def test_files_that_cannot_be_used_are_refused_with_what_is_wrong(tmp_path, pairs):
    (cert, key), other = pairs["first"], pairs["second"][1]
    locked = make(tmp_path, "locked", "-passout", "pass:abc")
    text, cut = tmp_path / "notes.txt", tmp_path / "cut.pem"
    text.write_text("hello")
    cut.write_text("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
    models = (ModelSpec("m", "m"),)
    for given, kind, said in (
        ({"tls_cert": cert}, InputError, "--tls-cert is given without --tls-key"),
        ({"tls_key": key}, InputError, "--tls-key is given without --tls-cert"),
        ({"tls_cert": tmp_path / "absent", "tls_key": key}, NotFoundError, "absent: No such file"),
        ({"tls_cert": cert, "tls_key": tmp_path}, NotFoundError, "with --tls-key"),
        ({"tls_cert": text, "tls_key": key}, InputError, "--tls-cert has no PEM certificate"),
        ({"tls_cert": cert, "tls_key": text}, InputError, "--tls-key has no PEM private key"),
        ({"tls_cert": key, "tls_key": cert}, InputError, "--tls-cert has no PEM certificate"),
        ({"tls_cert": cut, "tls_key": key}, InputError, "cannot use the certificate"),
        ({"tls_cert": cert, "tls_key": other}, InputError, "does not belong to the certificate"),
        ({"tls_cert": locked[0], "tls_key": locked[1]}, InputError, "is encrypted with a password"),
        ({"tls_cert": cert, "tls_key": key, "socket": tmp_path / "s"}, InputError, "Unix socket"),
    ):
        with pytest.raises(WeftError) as caught:
            Settings(models=models, **given).checked()
        assert isinstance(caught.value, kind) and said in str(caught.value), (given, str(caught.value))
    with pytest.raises(InputError):
        BackgroundServer(Settings(models=models, tls_cert=cert, tls_key=other))
    both = tmp_path / "both.pem"
    both.write_bytes(cert.read_bytes() + key.read_bytes())
    Settings(models=models, tls_cert=both, tls_key=both).checked()
    toml = tmp_path / "models.toml"
    toml.write_text(f"tls_cert = {json.dumps(str(cert))}\ntls_key = {json.dumps(str(key))}\n")
    assert read_toml(toml)["tls_cert"] == cert and read_toml(toml)["tls_key"] == key


def test_the_command_speaks_https_and_ps_finds_it(tmp_path, model_files, pairs):
    cert, key = pairs["first"]
    process = Process(tmp_path, f"tiny={model_files['tiny']}", "--tls-cert", str(cert), "--tls-key", str(key))
    try:
        url = f"https://127.0.0.1:{process.port}"
        assert f"curl {url}/v1/chat/completions" in process.summary
        with httpx.Client(base_url=url, verify=trusting(pairs["first"])) as client:
            wait_for(lambda: client.get("/health").status_code == 200, 60)  # 503 while the model loads
        (found,) = json.loads(process.weft("ps", "--json").stdout)
        assert found["url"] == url and found["models"][0]["name"] == "tiny"
        assert process.weft("stop").returncode == 0 and process.end()[0] == 0
    finally:
        process.child.kill()
        process.child.communicate()
