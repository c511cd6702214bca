"""``python -m examples.shop``: the ``manage.py`` of the shop."""

from __future__ import annotations

import os
import sys

import examples.shop

PROGRAM = "python -m examples.shop"

if __name__ == "__main__":
    if sys.argv[1:] in ([], ["-h"], ["--help"]):
        print(f"usage: {PROGRAM} COMMAND, and {PROGRAM} help for all commands\n\n{examples.shop.__doc__}")
        sys.exit()
    try:
        from django.core.management import execute_from_command_line
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is missing: pip install '.[django]'")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.shop.settings")
    execute_from_command_line([PROGRAM, *sys.argv[1:]])
