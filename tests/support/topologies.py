"""Redis Cluster and Sentinel as plain processes on loopback."""

from __future__ import annotations

from .cluster import RedisCluster
from .sentinel import SentinelSet

__all__ = ["RedisCluster", "SentinelSet"]
