"""Names that the app of tests of flows and the tests share."""

WORK = "flow.work"
SYNC = "flow.sync"
AGAIN = "flow.again"
FAIL = "flow.fail"
NOTHING = "flow.nothing"
EVENTS = "flow:events"
"""LIST of "enter|leave <flow key> <task id> <ms by Redis>"."""

GATE = "flow:hold"
"""LIST: a task with hold=True ends when it pops an item."""
