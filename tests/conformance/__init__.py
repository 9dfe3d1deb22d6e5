"""Runs recorded cases against the project's own cores: ``python -m tests.conformance FILE...``.

A file is ``{"format": ..., "cases": [...]}``.  ``files`` reads it, ``adapters`` holds one thin
module per format, found by itself, and ``runner`` prints a line per case.  An adapter only
translates: it contains no rule of the system.
"""
