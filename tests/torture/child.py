"""A process of the ordeal, and the ordeal's end when one misbehaves."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from tests.torture.account import Finding

ROOT = Path(__file__).parents[2]


class Failed(Exception):
    """The ordeal cannot go on; what is wrong is in ``finding``."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.finding = Finding(kind, detail)


class Child:
    """A process of the ordeal, with its output on files."""

    def __init__(self, folder: Path, name: str, module: str, arguments: list[str]) -> None:
        self.name = name
        self._out = folder / f"{name}.out"
        self._err = folder / f"{name}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"tests.torture.{module}", *arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def status(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout_s: float) -> int:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise Failed("stuck", f"{self.name} did not end within {timeout_s:.0f} s") from None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.stdin.close()

    def output(self) -> str:
        return self._out.read_text()

    def failure(self, status: int) -> Finding:
        lines = [line.strip(" |+-") for line in self._err.read_text().splitlines()]
        said = [line for line in lines if line]
        last = said[-1] if said else "without a word"
        return Finding("process failed", f"{self.name} ended with {status}: {last} ({self._err})")
