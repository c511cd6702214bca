"""Checks of the doctor; the first line of each docstring is the text of its finding if all is well."""
