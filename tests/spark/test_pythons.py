"""Workers with a Python of their own: named by a setting, or shipped as an archive."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path
from typing import Any

import pytest

import headrace.sync
from headrace.catalog.streams import StreamConfig
from headrace.groups.partitioned.names import GroupName
from headrace.log.open import open_log
from tests.log.helpers import table
from tests.support import ROOT

EVENTS = 40
pytestmark = pytest.mark.timeout(600)
DRIVER = """
import json, sys
import headrace.spark

catalog, master, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
spark = headrace.spark.session("pythons", master, **settings)

def who(_):
    import headrace, os, sys
    return sys.executable, os.path.dirname(headrace.__file__)

workers = sorted(set(spark.sparkContext.parallelize(range(4), 4).map(who).collect()))
if sys.argv[4:] == ["write"]:
    read = headrace.spark.read_stream(spark, "s", catalog=catalog, startingOffsets="earliest")
    out = read.selectExpr("'out.x' AS subject", "key", "value")
    headrace.spark.write_stream(
        out, "out", catalog=catalog, checkpointLocation=catalog + "/checkpoint"
    ).trigger(availableNow=True).start().awaitTermination()
    plain = spark.read.format("headrace").options(catalog=catalog, subscribe="s").load()
    plain.selectExpr("'out.y' AS subject", "key", "value").write.format("headrace").mode(
        "append").options(catalog=catalog, stream="out").save()
count = headrace.spark.read(spark, "out", catalog=catalog).count()
print(json.dumps({"workers": workers, "written": count}))
spark.stop()
"""


def run(*words: str, folder: Path) -> str:
    """What a program says, started where nothing of this project lies."""
    given = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK", "PYTHONPATH"))}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=given, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def drive(folder: Path, master: str, *more: str, **settings: Any) -> dict[str, Any]:
    catalog = str(folder / "catalog")
    with headrace.sync.open(catalog) as hr:
        for name in ("s", "out"):
            hr.create_stream(name, [f"{name}.>"])
        hr.client.log.append("s", table(EVENTS))
    given = {"spark.driver.memory": "512m", "spark.local.dir": str(folder / "local")} | settings
    found: dict[str, Any] = json.loads(
        run("-c", DRIVER, catalog, master, json.dumps(given), *more, folder=folder).splitlines()[-1]
    )
    return found


def packed(folder: Path) -> Path:
    """An environment with this package; what it needs besides comes from the one of the tests."""
    made = folder / "made"
    venv.create(made, symlinks=False, with_pip=False)
    site = next((made / "lib").glob("python*")) / "site-packages"
    for name in ("headrace", "pyspark_headrace"):
        shutil.copytree(ROOT / "src" / name, site / name, ignore=shutil.ignore_patterns("*.pyc"))
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    pack = folder / "pack.tar.gz"
    with tarfile.open(pack, "w:gz", compresslevel=1) as tar:
        tar.add(made, ".")
    shutil.rmtree(made)
    return pack


def test_a_package_shipped_as_an_archive_reads_and_writes(tmp_path: Path) -> None:
    """From a driver that runs another Python, and has not unpacked it."""
    pack = packed(tmp_path)
    found = drive(
        tmp_path,
        "local-cluster[2,1,1024]",
        "write",
        **{
            "spark.archives": f"{pack}#env",
            "spark.pyspark.python": "./env/bin/python",
            "spark.executor.memory": "512m",
        },
    )
    assert found["written"] == 2 * EVENTS
    remains = {Path(package.partition("/env/lib/")[0]).parent for _, package in found["workers"]}
    assert len(remains) == 1
    shutil.rmtree(remains.pop())  # Spark leaves it there
    for python, package in found["workers"]:
        assert python.endswith("/env/bin/python")
        assert "/env/lib/" in package


def test_workers_run_the_python_that_a_setting_names(tmp_path: Path) -> None:
    python = named(tmp_path)
    found = drive(tmp_path, "local[2]", **{"spark.pyspark.python": python})
    assert {each for each, _ in found["workers"]} == {python}


def test_the_pipeline_uses_the_python_that_a_setting_names(tmp_path: Path) -> None:
    catalog = tmp_path / "catalog"
    log = open_log(catalog)
    log.create_stream("s", StreamConfig(subjects=("s.>",)))
    log.append("s", table(30_000))
    log.catalog.close()
    group = ("group", "elastic", "create", "s", "g", "--max-members", "2")
    headrace_at = ("-m", "headrace", "--catalog", str(catalog))
    run(*headrace_at, *group, "--filter", "s.*", "--wildcards", "1", folder=tmp_path)
    python, used = tmp_path / "python", tmp_path / "used"
    python.write_text(f'#!/bin/sh\necho "$@" >> {used}\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    given = ("--spark-conf", f"spark.pyspark.python={python}")
    run(*headrace_at, "pipeline", "--once", "--master", "local[2]", *given, folder=tmp_path)
    assert "daemon" in used.read_text()
    log = open_log(catalog)
    queue = log.stream(GroupName("s", "g").work_queue)
    assert sum(segment.head for segment in queue.segments) == 30_000
    log.catalog.close()


def named(folder: Path) -> str:
    """A Python of another name, with the packages of this one."""
    made = folder / "named"
    venv.create(made, with_pip=False)
    site = next((made / "lib").glob("python*")) / "site-packages"
    (site / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT / 'src'}\n")
    return str(made / "bin" / "python")
