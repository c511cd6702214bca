"""A certificate authority for one test server."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from .parts import require

CONFIGURATION = """\
[req]
distinguished_name = name
x509_extensions = authority
prompt = no
[name]
CN = redis_queue tests
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = DNS:localhost, IP:127.0.0.1
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""
NEW_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -config tls.cnf"
COMMANDS = (
    f"req -x509 {NEW_KEY} -keyout ca.key -out ca.crt -days 30",
    f"req -new {NEW_KEY} -keyout server.key -out server.csr",
    "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile tls.cnf -extensions server"
    " -out server.crt -days 30",
)


@dataclass(frozen=True)
class Certificates:
    """Paths of a loopback certificate and of the certificate of its authority."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(directory: Path) -> Certificates:
    """Create an authority and a certificate for 127.0.0.1 and localhost in `directory`; raises MissingPartError."""
    openssl = require("openssl")
    (directory / "tls.cnf").write_text(CONFIGURATION)
    for command in COMMANDS:
        subprocess.run([openssl, *command.split()], cwd=directory, check=True, capture_output=True, timeout=60)
    return Certificates(directory / "ca.crt", directory / "server.crt", directory / "server.key")
