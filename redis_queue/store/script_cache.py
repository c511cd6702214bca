"""Load the Lua scripts into the script cache of a server, for Redis users without permission for EVAL."""

from __future__ import annotations

import redis

from redis_queue.errors import StoreError
from redis_queue.store.connection import Client
from redis_queue.store.redis_errors import RedisErrors, translate
from redis_queue.store.script_files import Script, all_scripts


def load_scripts(client: Client) -> int:
    """Load missing scripts into the server of *client*, or into all nodes of its Cluster; return how many there were.

    Redis forgets scripts on restart and SCRIPT FLUSH, and a promoted replica may never have had them. Loads into all
    nodes that can be reached, then raises StoreError for the first node that failed.
    """
    loaded: set[str] = set()
    failed: StoreError | None = None
    for node in _nodes(client):
        try:
            for script in missing_scripts(node):
                node.script_load(script.source)
                loaded.add(script.name)
        except RedisErrors as error:
            failed = failed or translate(error)
            failed.__cause__ = failed.__cause__ or error
    if failed is not None:
        raise failed
    return len(loaded)


def missing_scripts(node: redis.Redis) -> list[Script]:
    """Return the scripts missing on one server. Raises the errors of redis-py."""
    scripts = all_scripts()
    known = node.script_exists(*(script.sha for script in scripts))
    return [script for script, flag in zip(scripts, known, strict=True) if not flag]


def _nodes(client: Client) -> list[redis.Redis]:
    # Replicas of a Cluster, too: each may be promoted.
    if not isinstance(client, redis.RedisCluster):
        return [client]
    return [client.get_redis_connection(node) for node in client.get_nodes()]
