"""TLS for the keeper's connection, with the options of redis-py."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import Any


def wrap(link: socket.socket, host: str, options: Mapping[str, Any]) -> ssl.SSLSocket:
    """Return *link* under TLS, after the handshake. Raises OSError."""
    context = ssl.create_default_context()
    context.check_hostname = options["check_hostname"]
    context.verify_mode = ssl.VerifyMode(options["cert_reqs"])
    if options["certfile"] or options["keyfile"]:
        context.load_cert_chain(options["certfile"], options["keyfile"], options["password"])
    authorities = {name: options[name] for name in ("cafile", "capath", "cadata") if options[name] is not None}
    if authorities:
        context.load_verify_locations(**authorities)
    if options["min_version"] is not None:
        context.minimum_version = ssl.TLSVersion(options["min_version"])
    if options["ciphers"]:
        context.set_ciphers(options["ciphers"])
    return context.wrap_socket(link, server_hostname=host)
