"""Builds the compiled parts along with the package, where there is a compiler.

Without one, or without Python's headers, the package is installed all the same and does
everything in numpy and Arrow; ``headrace.compiled.kernels`` is None then.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src", "headrace", "compiled")
SOURCE = FOLDER / "_kernels.pyx"
MODULE = "headrace.compiled._kernels"


class CompiledParts(BuildHookInterface[Any]):
    """The build hook; hatchling calls it for wheels and for editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        del version
        try:
            built = build(Path(self.root))
        except (OSError, subprocess.CalledProcessError, NotBuilt) as error:
            self.app.display_warning(f"without compiled parts: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"].append(str(built.relative_to(self.root)))


class NotBuilt(Exception):
    """This machine lacks something."""


def compiler() -> list[str]:
    """The compiler's command: what ``CC`` says, the system's, or the one from PyPI."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    raise NotBuilt("no C compiler was found (cc, gcc, clang or the package ziglang)")


def build(root: Path) -> Path:
    """Compile the source into a module beside it; an old one is not left in its place."""
    target = root / FOLDER / f"_kernels{sysconfig.get_config_var('EXT_SUFFIX')}"
    target.unlink(missing_ok=True)
    headers = sysconfig.get_path("include")
    if not Path(headers, "Python.h").is_file():
        raise NotBuilt(f"Python's headers are not installed ({headers})")
    with tempfile.TemporaryDirectory(prefix="headrace-build-") as folder:
        c_file, made = Path(folder, "_kernels.c"), Path(folder, target.name)
        cython = [sys.executable, "-m", "cython", "-3", "--module-name", MODULE]
        if subprocess.run([*cython, str(root / SOURCE), "-o", str(c_file)]).returncode:
            raise ValueError(f"{SOURCE} could not be translated to C")
        link = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-s"]
        flags = ["-O3", "-fPIC", "-shared", "-fno-strict-aliasing", *link]
        subprocess.run(
            [*compiler(), *flags, f"-I{headers}", str(c_file), "-o", str(made)], check=True
        )
        shutil.copyfile(made, target.with_suffix(".new"))
        target.with_suffix(".new").replace(target)
    return target
