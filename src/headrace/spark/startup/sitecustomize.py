"""Spark's own Python modules from the environment, where their bytecode lies, not from a zip file.

Spark puts ``pyspark.zip`` first on the path of every Python process that it starts, and nothing
keeps bytecode of what is in a zip file: each process compiles 400 modules, 1 s of CPU, and the
first query of a session waits for half a dozen.  Where the zip file lies within the very package
that this Python would import without it, the package is taken.

``session`` puts this folder on the path of Spark's processes on this machine, and Python runs
``sitecustomize`` when it starts: whichever Python that is, with or without Headrace.
"""

import os
import sys

NAME = "sitecustomize"


def without_zip_files(path: list[str]) -> list[str]:
    """A path without the zip files of a PySpark that is on it as a package, too."""
    zipped = [each for each in path if each.endswith(".zip") and _package(each) is not None]
    rest = [each for each in path if each not in zipped]
    found = _first(rest, "pyspark")
    if found is None or _first(rest, "py4j") is None:
        return path
    if not all(_is_same(found, _package(each)) for each in zipped):
        return path
    return rest


def _package(zip_file: str) -> "str | None":
    """The package that a zip file is a part of: ``…/pyspark/python/lib/pyspark.zip``."""
    folder, tail = os.path.split(os.path.dirname(zip_file))
    home, middle = os.path.split(folder)
    return home if (middle, tail) == ("python", "lib") else None


def _first(path: list[str], package: str) -> "str | None":
    places = (os.path.join(each, package) for each in path)
    return next((each for each in places if os.path.isfile(_start_of(each))), None)


def _start_of(package: str) -> str:
    return os.path.join(package, "__init__.py")


def _is_same(one: str, other: "str | None") -> bool:
    try:
        return other is not None and os.path.samefile(_start_of(one), _start_of(other))
    except OSError:
        return False


def run_the_next() -> None:
    """Run the module of this name that Python would have found without this one."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec(NAME, sys.path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if __name__ == NAME:
    _here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = without_zip_files([each for each in sys.path if os.path.abspath(each) != _here])
    run_the_next()
