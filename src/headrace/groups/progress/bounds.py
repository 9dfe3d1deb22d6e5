"""Bounds of offsets."""

from __future__ import annotations

OFFSET_MAX = 2**63 - 1
"""One past the largest offset that can be acked; offsets are signed 64-bit on disk."""
