"""One module per peer: `schedule` delays tasks one by one, `commands` returns the processes that execute them."""

from __future__ import annotations

import os

URL = os.environ.get("BENCHMARK_BROKER", "redis://localhost:6379/0")
ARGUMENT = "x" * 200
