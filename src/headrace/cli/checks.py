"""What ``headrace doctor`` found."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["ok", "warning", "failed"]


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at; ``mend`` says what to do when it is not as it should be."""

    name: str
    state: State
    found: str
    mend: str = ""
