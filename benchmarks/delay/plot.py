"""Plot lateness against the number of stored entries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.delay.figures import Quantiles


def save(path: Path, native: Quantiles, delayed: Mapping[int, Quantiles]) -> None:
    """Write the plot to *path* as PNG."""
    import matplotlib as mpl  # noqa: PLC0415 - the figures do not need it

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - the backend comes first

    levels = sorted(delayed)
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    places = range(len(levels))
    for name, marker in (("p50", "o"), ("p99", "s")):
        values = [getattr(delayed[level], name) for level in levels]
        ranges = [getattr(delayed[level], f"{name}_range") for level in levels]
        below = [value - low for value, (low, _) in zip(values, ranges, strict=True)]
        above = [high - value for value, (_, high) in zip(values, ranges, strict=True)]
        axes.errorbar(places, values, (below, above), marker=marker, capsize=4, label=f"DurableTasks {name}")
        axes.axhline(getattr(native, name), linestyle=":", color="grey")
        axes.annotate(f"native countdown {name}", (0.01, getattr(native, name)), xycoords=("axes fraction", "data"))
    axes.set_xticks(places, [f"{level:,}" for level in levels])
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel("far-future entries stored")
    axes.set_ylabel("lateness in ms (median, lowest and highest round)")
    axes.set_title("Start of a task after its due time, 200 tasks/s")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
