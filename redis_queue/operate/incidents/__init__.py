"""Incidents: what is wrong now, since when, why, what it keeps back, and the page on which it is mended."""
