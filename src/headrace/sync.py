"""The API for scripts, without ``await``: :mod:`headrace.api.sync` under its public name."""

from headrace.api.sync import Headrace, open

__all__ = ["Headrace", "open"]
