# SPDX-License-Identifier: MIT
"""Processes that do one step at a time, when they are told to.

Programs that cannot share a process are all started, and then take steps by turns: the
same step of each stands next to those of the others, so a machine that slows down, or
a card that grows warm, slows all of them alike. Who does not take its turn waits for a
line of input, and takes neither the processor nor the device.

A program prints a line when it is ready, answers each line "step" with a line of JSON,
and ends with its input.
"""

import json
import os
import subprocess
import tempfile
from threading import Timer
from types import TracebackType
from typing import Any

from benchmarks.programs import ROOT, Unavailable, last_line


class Stepper:
    """One such process. A context manager: at its end the process is gone."""

    def __init__(self, words: list[str], seconds: float, **environment: str) -> None:
        """Starts it. It is ended after `seconds`. Unavailable: there is no such
        program."""
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")
        try:
            self._process = subprocess.Popen(
                words,
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,  # nothing is left to be written to who has ended
            )
        except OSError as error:
            self._errors.close()
            raise Unavailable(f"{words[0]}: {error}") from error
        self._timer = Timer(seconds, self._process.kill)
        self._timer.start()

    def __enter__(self) -> "Stepper":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        self._process.kill()
        with self._process:  # closes its pipes and waits
            pass
        self._errors.close()

    def wait_until_ready(self) -> None:
        """Unavailable: it ended before."""
        self._line()

    def step(self) -> dict[str, Any]:
        """Has it do a step; its answer. Unavailable: it ended."""
        assert self._process.stdin
        try:
            self._process.stdin.write(b"step\n")
        except OSError:  # it has ended: the reason is in what it said
            pass
        found: dict[str, Any] = json.loads(self._line())
        return found

    def _line(self) -> bytes:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            said = last_line(self._errors.read())
            raise Unavailable(said or f"ended with exit code {code}")
        return line
