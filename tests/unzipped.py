"""Spark's own Python modules from the environment, where their bytecode lies, not from a zip file.

Spark puts ``pyspark.zip`` first on the path of every Python process it starts, and nothing keeps
bytecode of what is in a zip file: each of those processes compiles 400 modules, 1 s of CPU, and a
session starts half a dozen.  The environment has the same release.  A ``.pth`` file takes the zip
files off the path of every process of this environment; one without it is slower, no more.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

LINE = (
    "import sys; sys.path[:] = [each for each in sys.path"
    " if not (each.endswith('.zip') and '/pyspark/python/lib/' in each)]\n"
)


def make() -> None:
    """Write the file; nothing if it is there."""
    path = Path(sysconfig.get_path("purelib")) / "headrace-tests-unzipped.pth"
    if path.exists():
        return
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(LINE, encoding="utf-8")
    draft.rename(path)
