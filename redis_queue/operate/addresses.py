"""Addresses of clients, and host names in their requests."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from typing import Final

SITE_BITS: Final = 64
"""Length of an IPv6 network: one client usually has all addresses of it."""

_HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9._-]{1,253}))(?::\d{1,5})?", re.ASCII)


def network(address: str) -> str:
    """Return the network to which limits apply: an IPv4 address itself, the /64 of an IPv6 address.

    Other text is returned as it is.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, SITE_BITS), strict=False))


def is_own_host(header: str, names: Collection[str]) -> bool:
    """Return whether a Host header names localhost, one of *names* (lower case), or an IP address.

    A page of another site that reaches this port by DNS rebinding sends the name of that site, never an IP address.
    """
    found = _HOST.fullmatch(header)
    if found is None:
        return False
    if found["address"] is None:
        name = found["name"].lower()
        return name == "localhost" or name in names or _is_address(name)
    return _is_address(found["address"])


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
