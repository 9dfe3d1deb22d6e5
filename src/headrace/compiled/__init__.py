"""Compiled parts: the few loops over every byte of every event, where they were built.

``kernels`` is a module, or None where no compiler was at hand when the package was installed, or
``HEADRACE_COMPILED=0`` is set.  Whoever uses it has a way without it that does the same, more
slowly: the kernels know no rule that is not also elsewhere, and what they are not sure of they
leave to that other way.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

kernels: ModuleType | None = None

# They write numbers as Arrow does, which is how nearly all processors have them.
if os.environ.get("HEADRACE_COMPILED") != "0" and sys.byteorder == "little":
    try:
        from headrace.compiled import _kernels as kernels  # noqa: F401
    except ImportError:
        pass
