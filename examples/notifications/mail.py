"""Write mails to a file."""

from __future__ import annotations

from pathlib import Path

from flask import current_app


def send_mail(to: str, text: str) -> None:
    """Append a mail to the configured file."""
    with Path(current_app.config["OUTBOX"]).open("a") as outbox:
        outbox.write(f"{to}: {text}\n")
