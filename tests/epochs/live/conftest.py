"""Tests of live epochs do not depend on how busy the machine is."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.epochs.live.serving.SILENCE_MS", 60_000)
    monkeypatch.setattr("headrace.epochs.live.subscription.SILENCE_MS", 60_000)
