"""Messages in the command line's own words.

The library speaks of its parameters (``start=3``, ``stall_timeout_ms``, ``{segment: offset}``).
Who typed a command knows its options, so the names of parameters that the command has become those
of its options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_OTHERWISE = (
    ("{segment: offset}", "positions (0:120,1:98)"),
    ("a datetime", "a time"),
    ("choose a segment", "choose one with --segments"),
)


def in_own_words(message: str, options: Mapping[str, str]) -> str:
    """A message of the library, for somebody at a terminal; ``options`` by parameter.

    >>> in_own_words("start=3 needs one segment: give {segment: offset}", {"start": "--from"})
    '--from 3 needs one segment: give positions (0:120,1:98)'
    >>> in_own_words("heartbeat_ms is 900; let them leave, or use force",
    ...              {"heartbeat": "--heartbeat", "force": "--force"})
    '--heartbeat is 900 ms; let them leave, or use --force'
    """
    for name, option in options.items():
        message = re.sub(rf"\b{name}=(?=\S)", f"{option} ", message)
        message = re.sub(rf"\b{name}_ms is (\d+)", rf"{option} is \1 ms", message)
        message = re.sub(rf"^{name}(?= is |: )|\b(?<=use ){name}\b", option, message)
        if "_" in name:
            message = re.sub(rf"(\$\.)?\b{name}\b", option, message)
    for ours, theirs in _OTHERWISE:
        message = message.replace(ours, theirs)
    return message
