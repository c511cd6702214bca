"""Mail, as far as an example goes."""

from __future__ import annotations

from pathlib import Path

from flask import current_app


def send_mail(to: str, text: str) -> None:
    """Write a mail into the file that the application is configured with."""
    with Path(current_app.config["OUTBOX"]).open("a") as outbox:
        outbox.write(f"{to}: {text}\n")
