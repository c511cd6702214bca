"""Tests of unique tasks."""
