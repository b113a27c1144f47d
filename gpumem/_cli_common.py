# SPDX-License-Identifier: MIT
"""What the commands of the command line share: exit codes, complaints, the first use of
the device, progress. See _cli.py."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import gpumem

INCOMPLETE = 1
UNUSABLE = 2
INTERRUPTED = 130
NO_READER = 141

# Called with what is going on, how many steps are done, and of how many.
Progress = Callable[[str, int, int], None]


class Unusable(Exception):
    """What the user gave cannot be worked with; the text is for them."""


def complain(what: object, code: int) -> int:
    if sys.stderr is not None:  # print takes None for stdout
        try:
            print(f"gpumem: {what}", file=sys.stderr, flush=True)
        except OSError:  # nobody listens
            forget(sys.stderr)
    return code


def forget(*streams: TextIO | None) -> None:
    """Lets what the streams have not written yet go nowhere. At its end the interpreter
    would try again, and fail with a message and an exit code of its own."""
    with open(os.devnull, "wb") as nowhere:
        for stream in streams:
            if stream is not None:
                os.dup2(nowhere.fileno(), stream.fileno())


def open_backend() -> str:
    """Name of the backend in use; the first use of the device is here."""
    try:
        # Warnings are told as complaints are: no line of ours is to blame.
        with warnings.catch_warnings(record=True) as told:
            name = gpumem.get_backend()
    except (ValueError, RuntimeWarning) as error:
        # A variable that makes no sense, or warnings that are to be errors.
        raise Unusable(error) from error
    for warning in told:
        complain(warning.message, 0)
    return name


# ---- progress ----


@contextmanager
def show_progress() -> Iterator[Progress | None]:
    """Shows how far the work is, on stderr; None, so nothing, when that is no terminal.

    Both forms draw only when they are called: a thread that redraws would run inside
    the timed passes.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    try:
        import rich.console
        import rich.progress
    except ImportError:
        try:
            yield _draw_percentage
        finally:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        return
    bar = rich.progress.Progress(
        console=rich.console.Console(stderr=True), auto_refresh=False, transient=True
    )
    with bar:
        task = bar.add_task("", total=1)

        def draw(label: str, done: int, total: int) -> None:
            bar.update(
                task, description=label, completed=done, total=total, refresh=True
            )

        yield draw


def _draw_percentage(label: str, done: int, total: int) -> None:
    sys.stderr.write(f"\r\x1b[K{label} {100 * done // total}%")
    sys.stderr.flush()
