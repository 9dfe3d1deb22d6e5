"""Which Java is used: the machine's if it is new enough, else the bundled one, else an error."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from headrace.errors import JavaMissingError, JavaTooOldError
from headrace.spark import java


def fake_java(folder: Path, version: str) -> Path:
    """A Java home whose only ability is to tell its version."""
    (folder / "bin").mkdir(parents=True)
    script = folder / "bin" / "java"
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    script.chmod(0o755)
    return folder


@pytest.fixture
def nothing_bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_bundled_home", lambda: None)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    mine, other = fake_java(tmp_path / "a", "21.0.1"), fake_java(tmp_path / "b", "17.0.2")
    both = {"JAVA_HOME": str(mine), "PATH": str(other / "bin")}
    assert java.find_java(both) == java.Java(mine, 21)
    assert java.find_java({"PATH": str(other / "bin")}) == java.Java(other, 17)


def test_an_old_java_home_is_passed_over(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "a", "1.8.0_292"), fake_java(tmp_path / "b", "17.0.2")
    found = java.find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert found.home == new


@pytest.mark.usefixtures("nothing_bundled")
def test_without_java_the_error_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(JavaMissingError, match=r"pip install 'headrace\[java\]'"):
        java.find_java({"PATH": str(tmp_path)})
    old = fake_java(tmp_path / "a", "11.0.2")
    with pytest.raises(JavaTooOldError, match="has Java 11"):
        java.find_java({"JAVA_HOME": str(old), "PATH": ""})


def test_the_bundled_java_starts_without_the_module_it_lacks(tmp_path: Path) -> None:
    found = java.find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "with space's")})
    assert found.bundled
    assert found.release >= java.JAVA_MIN
    module = "--add-modules=jdk.incubator.vector"
    words = [module, "-Dplain=a b", "-XshowSettings:properties", "-version"]
    done = subprocess.run(
        [found.home / "bin" / "java", *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "plain = a b" in done.stderr
    bare = java._bundled_home()
    assert bare is not None
    refused = subprocess.run([bare / "bin" / "java", module, "-version"], capture_output=True)
    assert refused.returncode != 0
    assert java.find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "with space's")}) == found
