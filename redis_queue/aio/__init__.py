"""RedisQueue, DelayQueue and Consumer for asyncio. Needs the extra ``aio``."""

from redis_queue.aio.calls import run
from redis_queue.aio.consumer import Consumer
from redis_queue.aio.queues import DelayQueue, RedisQueue

__all__ = ["Consumer", "DelayQueue", "RedisQueue", "run"]
