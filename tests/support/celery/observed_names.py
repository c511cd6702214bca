"""Names of the tasks and keys of `tests.support.celery.observed_app`."""

OK, FAIL, AGAIN, REJECT = "observed.ok", "observed.fail", "observed.again", "observed.reject"
IGNORE, LONG, DIE, HEADERS = "observed.ignore", "observed.long", "observed.die", "observed.headers"
GATE, HUGE, MENDED, LATER = "observed.gate", "observed.huge", "observed.mended", "observed.later"
CANVAS, PATIENT, CRASH = "observed.canvas", "observed.patient", "observed.crash"

SEEN = "observed:seen"
"""List of what tasks saw."""
