"""The result of a run, and its table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from examples.orders.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Result:
    """The two kinds of work, and the processes that were killed and restarted."""

    tasks: Ledger
    lines: Ledger
    killed: str
    restarted: str
    seconds: float

    @property
    def lost(self) -> int:
        """Number of sent ids that were never done."""
        return self.tasks.lost + self.lines.lost

    def show(self, console: Console) -> None:
        """Print the table."""
        table = Table("", "delayed tasks", "order lines")
        for column in table.columns[1:]:
            column.justify = "right"
        for name, of in ROWS.items():
            table.add_row(name, of(self.tasks), of(self.lines))
        console.print(table)
        console.print(f"killed     {self.killed}", highlight=False, soft_wrap=True)
        console.print(f"restarted  {self.restarted}", highlight=False, soft_wrap=True)
        verdict = f"[bold red]{self.lost} LOST[/]" if self.lost else "[bold green]nothing was lost[/]"
        console.print(f"{verdict}, {self.seconds:.1f} s in total", highlight=False)


ROWS: dict[str, Callable[[Ledger], str]] = {
    "sent": lambda work: f"{len(work.sent)}",
    "executed": lambda work: f"{work.executed}",
    "lost": lambda work: f"{work.lost}",
    "doubled": lambda work: f"{work.doubled}",
    "lateness p50": lambda work: f"{work.lateness(0.5):.2f} s",
    "lateness p99": lambda work: f"{work.lateness(0.99):.2f} s",
}
