"""Delayed tasks move between the broker and the store when the extension is installed or removed."""
