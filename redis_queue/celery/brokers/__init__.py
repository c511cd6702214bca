"""Connections that publish to each kind of broker."""
