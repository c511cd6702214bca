"""Send immediate and delayed tasks while workers die between any two Redis commands; print a table of the outcomes.

Lost: Redis no longer contains the task. Stuck: it does, but the task did not run within a minute without kills.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.kills.celery_peers import CeleryPeer, DelayedPeer
from benchmarks.kills.dramatiq_peer import DramatiqPeer
from benchmarks.kills.peer import Peer
from benchmarks.kills.rq_peer import RqPeer
from benchmarks.server import private_redis
from chaos.crew import Duty
from chaos.figures import middle
from chaos.run import Run

PEERS: dict[str, type[Peer]] = {
    "celery": CeleryPeer,
    "redis_queue": DelayedPeer,
    "rq": RqPeer,
    "dramatiq": DramatiqPeer,
}
COLUMNS = ("sent", "kills", "executed", "lost", "stuck", "doubled", "early", "again_p50_s", "again_max_s")


def measure(kind: type[Peer], tasks: int, chance: float, seed: int) -> dict[str, float]:
    """Run one task queue and return its figures."""
    with tempfile.TemporaryDirectory() as name, private_redis() as url:
        peer = kind(url)
        run = Run(Duty(Path(name), tasks // 2, chance, seed), peer, tell=lambda line: _tell(kind.name, line))
        found = run.go()
    verdict = found.verdict
    return {
        "sent": verdict.sent,
        "kills": found.kills,
        "executed": verdict.executed,
        "lost": verdict.broken("lost"),
        "stuck": len(peer.progress.open) - verdict.broken("lost"),
        "doubled": verdict.repeated,
        "early": verdict.broken("early"),
        "again_p50_s": round(middle(verdict.returns) / 1000, 1),
        "again_max_s": round(max(verdict.returns, default=0) / 1000, 1),
        "crashed": verdict.broken("crashed"),
    }


def main() -> None:
    """Print a Markdown table, and as the last line one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", choices=[*PEERS, []], help="which (default: all)")
    parser.add_argument("--tasks", type=int, default=6000, help="sent to each, half of them delayed (default 6000)")
    parser.add_argument("--chance", type=float, default=0.001, help="of a kill at each command (default 0.001)")
    parser.add_argument("--seed", type=int, default=1, help="of all dice (default 1)")
    options = parser.parse_args()
    found = {
        PEERS[name].name: measure(PEERS[name], options.tasks, options.chance, options.seed)
        for name in options.peers or PEERS
    }
    print(f"| | {' | '.join(column.replace('_', ' ') for column in COLUMNS)} |")
    print(f"|---|{'---|' * len(COLUMNS)}")
    for name, figures in found.items():
        print(f"| {name} | {' | '.join(f'{figures[column]:,}' for column in COLUMNS)} |")
    print(json.dumps(found))


def _tell(name: str, line: str) -> None:
    sys.stderr.write(f"{name}: {line}\n")


if __name__ == "__main__":
    main()
