# SPDX-License-Identifier: MIT
"""The command line: `python -m gpumem replay` and `python -m gpumem info`.

Results go to stdout, progress and complaints to stderr. Exit codes: 0 all went well;
1 the work did not complete (out of memory, a device error, or the allocator broke a
promise); 2 the command line, the environment or a file, stdout included, is not usable;
130 interrupted; 141 whoever read the output left, as the shell has it for a program
that a signal ended. No input ends in a traceback.

This file has `info` and what becomes of errors; `replay` is in _cli_replay.py, what
both share in _cli_common.py.
"""

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gpumem
from gpumem import _cli_replay
from gpumem._cli_common import (
    INCOMPLETE,
    INTERRUPTED,
    NO_READER,
    UNUSABLE,
    Unusable,
    complain,
    forget,
    open_backend,
)
from gpumem._config import config
from gpumem._trace import TraceError
from gpumem._units import format_bytes

# Name, and what it does. The library reads each at first use, never at import; the
# limits whenever a pool is made.
_ENVIRONMENT = {
    "GPUMEM_BACKEND": (
        "auto (default): the GPU if there is one, else the simulated device; "
        "cuda: the GPU or an error; sim: the simulated device"
    ),
    "GPUMEM_SIM_DEVICES": "how many simulated devices there are",
    "GPUMEM_SIM_MEMORY": "memory of each simulated device: bytes, or as 8GiB",
    "GPUMEM_MEMORY_LIMIT": (
        "limit of every new pool on every device: bytes, as 8GiB, or as 50% of the "
        "device's memory"
    ),
    "CUPY_GPU_MEMORY_LIMIT": "the same, where GPUMEM_MEMORY_LIMIT is not set",
    "GPUMEM_EXPANDABLE_SEGMENTS": (
        "1: pools that were made without saying map memory page by page"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` and returns the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # As stderr is from the start: a file's name can be any bytes.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            return _run(argv)
        finally:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:  # closed by whoever started this
                    stream.flush()  # what cannot be written is to fail here
    except (TraceError, Unusable) as error:
        return complain(error, UNUSABLE)
    except (MemoryError, RuntimeError) as error:
        return complain(str(error) or "the host has no memory left", INCOMPLETE)
    except KeyboardInterrupt:
        return complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        forget(sys.stdout, sys.stderr)
        return NO_READER
    except OSError as error:  # those of other files were told of where they came up
        forget(sys.stdout)
        return complain(f"cannot write the output: {error.strerror}", UNUSABLE)


def _run(argv: Sequence[str] | None) -> int:
    args = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = args.run
    return run(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gpumem",
        description="A GPU memory allocator: replay traces, show the configuration.",
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    replay = commands.add_parser(
        "replay",
        help="replay a recorded allocation trace and report memory and speed",
        description=_cli_replay.DESCRIPTION,
        epilog=_cli_replay.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    replay.set_defaults(run=_cli_replay.run, usage_error=replay.error)
    _cli_replay.add_arguments(replay)

    info = commands.add_parser(
        "info",
        help="show version, build, backend, devices and environment",
        description="Shows what is installed, which backend and devices are in use, "
        "and the environment variables that matter.",
    )
    info.set_defaults(run=_run_info)
    info.add_argument(
        "--json", action="store_true", help="print one JSON object instead of text"
    )
    return parser


# ---- info ----


def _run_info(args: argparse.Namespace) -> int:
    devices: list[dict[str, Any]] = []
    trouble: Exception | None = None
    try:
        open_backend()
        devices = _devices()
        gpumem.MemoryPool().get_limit()  # what the environment says
    except (Unusable, ValueError, RuntimeError) as error:
        trouble = error  # then the rest is worth most
    facts = {
        "config": config(),
        "devices": devices,
        "environment": {
            name: {"value": os.environ.get(name), "meaning": meaning}
            for name, meaning in _ENVIRONMENT.items()
        },
    }
    print(json.dumps(facts) if args.json else "\n".join(_tell(facts)))
    if trouble is None:
        return 0
    return complain(
        trouble, INCOMPLETE if isinstance(trouble, RuntimeError) else UNUSABLE
    )


def _devices() -> list[dict[str, Any]]:
    """Every device, with its memory in bytes."""
    found = []
    for number in range(gpumem.get_device_count()):
        device = gpumem.Device(number)
        free, total = device.mem_info
        found.append(
            {
                "id": number,
                "name": device.name,
                "free_bytes": free,
                "total_bytes": total,
            }
        )
    return found


def _tell(facts: dict[str, Any]) -> Iterator[str]:
    """What `info` found in lines for a person."""
    width = max(map(len, facts["config"]))
    for name, text in facts["config"].items():
        yield f"{name:<{width}}  {text}"
    for device in facts["devices"]:
        free, total = device["free_bytes"], device["total_bytes"]
        name = f"device {device['id']}"
        yield (
            f"{name:<{width}}  {device['name']}, "
            f"{format_bytes(free)} free of {format_bytes(total)}"
        )
    yield "environment"
    for name, entry in facts["environment"].items():
        value = "not set" if entry["value"] is None else repr(entry["value"])
        yield f"  {name}: {value}"
        yield f"      {entry['meaning']}"
