"""Compiled kernels (Cython): the few loops that touch every byte of every event.

``kernels`` is a module, or None where no compiler was at hand when the package was installed, or
``HEADRACE_COMPILED=0`` is set.  Every caller has a slower fallback in Python with the same result:
the kernels hold no rule that is not also there, and leave to it whatever is not a plain case.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

kernels: ModuleType | None = None

# They write Arrow's little-endian integers straight from memory.
if os.environ.get("HEADRACE_COMPILED") != "0" and sys.byteorder == "little":
    try:
        from headrace.compiled import _kernels as kernels  # noqa: F401
    except ImportError:
        pass
