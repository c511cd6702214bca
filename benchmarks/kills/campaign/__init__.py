"""A campaign: millions of tasks in pieces, real Celery workers, and faults of all kinds; each piece has a seed."""
