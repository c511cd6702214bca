"""The alternating rounds of a run."""

from __future__ import annotations

from kombu.connection import Connection

from benchmarks import recording
from benchmarks.delay import burst, idling, lateness, moving, publishing, scheduling
from benchmarks.delay.apps import Place, make_app
from benchmarks.delay.figures import LEVELS, Burst, Quantiles, Results
from benchmarks.delay.filling import fill
from benchmarks.delay.site import Site, Tell


def run(site: Site, rounds: int, tell: Tell) -> Results:
    """Measure everything; *tell* receives the progress."""
    largest = site.scale.largest
    sizes = scheduling.sizes(site)
    rates, moves = _throughput(site, rounds, tell)
    bursts = _bursts(site, rounds, tell)
    site.client().flushall()
    idle: dict[int | None, float] = {None: idling.requests_per_second(site, site.stock())}
    idle[0] = idling.requests_per_second(site, _holding(site, 0))
    memory_growth = idling.memory_growth(site, _holding(site, LEVELS[-1]), LEVELS[-1])
    tell(f"idle: stock {idle[None]:.2f} round trips/s, delayed {idle[0]:.2f}; memory +{memory_growth:.2f} MB")
    if largest:
        app = make_app(_holding(site, largest))
        fill(app, largest, tell=lambda stored: tell(f"stored {stored:,}") if stored % 250_000 == 0 else None)
        app.close()
        idle[largest] = idling.requests_per_second(site, _holding(site, largest))
        tell(f"idle: {idle[largest]:.2f} round trips/s with {largest:,} stored")
    native, delayed = _lateness(site, rounds, tell)
    return Results(
        rates, moves, bursts, native, delayed, memory_growth, idle, sizes, moved=site.scale.moved, largest=largest
    )


def _throughput(site: Site, rounds: int, tell: Tell) -> tuple[list[dict[str, float]], dict[str, list[float]]]:
    targets = {"here": site.url, "other Redis": site.other, "RabbitMQ": site.rabbitmq}
    if not _reachable(site.rabbitmq):
        tell("no RabbitMQ at its address: what is dispatched to it is not measured")
        del targets["RabbitMQ"]
    rates: list[dict[str, float]] = []
    moves: dict[str, list[float]] = {"here": [], "other Redis": [], "RabbitMQ": [], "py-amqp": []}
    for number in range(rounds):
        rates.append(scheduling.rates(site))
        for name, broker in targets.items():
            moves[name].append(moving.seconds_to_move(site, broker))
        if "RabbitMQ" in targets:
            moves["py-amqp"].append(publishing.seconds_to_publish(site))
        sent = ", ".join(f"{name} {rate:,.0f}/s" for name, rate in rates[-1].items())
        moved = ", ".join(f"{name} {site.scale.moved / found[-1]:,.0f}/s" for name, found in moves.items() if found)
        tell(f"round {number + 1}/{rounds}: sent: {sent}; moved: {moved}")
    return rates, moves


def _bursts(site: Site, rounds: int, tell: Tell) -> list[Burst]:
    found: list[Burst] = []
    site.client().flushall()
    for number in range(rounds):
        last = Burst(burst.undelayed(site), burst.falling_due(site), burst.falling_due(site, atomic_fetch=True))
        found.append(last)
        delayed = f"delayed {last.delayed:.2f} s, with atomic fetch {last.atomic_fetch:.2f} s"
        tell(f"round {number + 1}/{rounds}: burst: undelayed {last.undelayed:.2f} s, {delayed}")
    return found


def _lateness(site: Site, rounds: int, tell: Tell) -> tuple[Quantiles, dict[int, Quantiles]]:
    levels = [*LEVELS, *([site.scale.largest] if site.scale.largest else [])]
    places: dict[int | None, Place] = {None: site.stock()} | {level: _holding(site, level) for level in levels}
    found: dict[int | None, list[tuple[float, float]]] = {level: [] for level in places}
    for number in range(rounds):
        for level, place in places.items():
            late = lateness.lateness(site, place)
            p50, p99 = (recording.quantile(late, part) for part in (0.5, 0.99))
            found[level].append((p50, p99))
            name = "native" if level is None else f"{level:,} stored"
            line = f"p50 {p50:.2f} ms, p99 {p99:.2f}, earliest {late[0]:.2f}, latest {late[-1]:.2f}"
            tell(f"round {number + 1}/{rounds}: lateness: {name}: {line}")
    return Quantiles.of(found[None]), {level: Quantiles.of(found[level]) for level in levels}


def _holding(site: Site, level: int) -> Place:
    """Return the place whose store has *level* far-future entries."""
    return site.delayed(f"with-{level}")


def _reachable(url: str) -> bool:
    with Connection(url, connect_timeout=3) as connection:
        try:
            connection.ensure_connection(max_retries=1, interval_start=0)
        except (*connection.connection_errors, OSError):
            return False
        return True
