"""Keeper: a process beside a Celery worker that renews the leases of the worker's messages.

A thread of the worker is not enough: a task that holds the interpreter would stop it. The worker writes each message
that it fetches or settles into a pipe, before anything else can run. The keeper renews the open leases every third of
a lease, in one call, and writes the time into memory that both processes share. It exits with the
worker, even during a call, and renews nothing while the worker is stopped, so that the leases of a dead worker expire.
"""
