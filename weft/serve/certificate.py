"""The TLS certificate of a server, from files that may be renewed while it runs."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from weft.errors import InputError, NotFoundError, WeftError

MOST_BYTES = 1 << 20

log = logging.getLogger("weft.serve")

Stamps = tuple[tuple[int, int, int], ...]


class Certificate:
    """A certificate chain and its private key, as PEM files; `context` is for all connections of a server."""

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert = cert
        self._key = key
        self._loaded = self._seen = self._stamps()
        self.context = _context(cert, key)

    def refresh(self) -> bool:
        """Load the files again if they have changed, for connections to come; whether they were loaded.

        Called again and again: files that changed are loaded when they have not changed since the call before, since
        the two are not written at the same moment. Files that cannot be used are logged, and the old ones stay.
        """
        stamps = self._stamps()
        settled, self._seen = stamps == self._seen, stamps
        if stamps == self._loaded or not settled:
            return False
        self._loaded = stamps
        try:
            _context(self._cert, self._key)  # a failure must not leave half of the new files in the context in use
            self.context.load_cert_chain(self._cert, self._key)
        except (WeftError, OSError) as error:
            log.error("certificate not renewed", extra={"error": str(error)})
            return False
        log.info("certificate renewed", extra={"file": str(self._cert)})
        return True

    def _stamps(self) -> Stamps:
        """What tells that a file was written: its time, size and number; zeros for one that is missing."""
        found = []
        for path in (self._cert, self._key):
            try:
                state = path.stat()
                found.append((state.st_mtime_ns, state.st_size, state.st_ino))
            except OSError:
                found.append((0, 0, 0))
        return tuple(found)


def client_context(cert: str) -> ssl.SSLContext:
    """For a client on the same machine, which trusts the server's own certificate, whatever its name is."""
    context = ssl.create_default_context(cafile=cert)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _context(cert: Path, key: Path) -> ssl.SSLContext:
    _check("--tls-cert", cert, b"-----BEGIN CERTIFICATE-----", "certificate")
    _check("--tls-key", key, b"PRIVATE KEY-----", "private key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2

    def no_password() -> str:
        advice = "decrypt it: openssl pkey -in KEY -out NEW"
        raise InputError("serve", "is encrypted with a password", field="--tls-key", given=str(key), advice=advice)

    try:
        context.load_cert_chain(cert, key, no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            reason = f"the private key {key} does not belong to the certificate {cert}"
            advice = "give the two files that were made together with --tls-cert and --tls-key"
            raise InputError("serve", reason, advice=advice) from None
        reason = f"cannot use the certificate {cert} with the private key {key}: {error.reason or error}"
        raise InputError("serve", reason, advice="give PEM files with --tls-cert and --tls-key") from None
    return context


def _check(option: str, path: Path, mark: bytes, kind: str) -> None:
    """Refuse a file that cannot be read or has no PEM block of this kind, by name; the TLS library names neither."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES)
    except OSError as error:
        reason = f"cannot read {path}: {error.strerror or error}"
        raise NotFoundError("serve", reason, advice=f"give a PEM file with {option}") from None
    if mark not in content:
        reason = f"has no PEM {kind}"
        raise InputError("serve", reason, field=option, given=str(path), advice="give a file that has -----BEGIN …")
