# SPDX-License-Identifier: MIT
"""Fixtures of the tests of public reports."""

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def pytest_configure(config):
    # The suite runs without pytest-timeout too, which then knows no such marker.
    config.addinivalue_line("markers", "timeout: seconds after which the test fails")


@pytest.fixture
def apart(script, request):
    """A function that runs `body`, a function of the test's file, with `arguments` in
    an interpreter of its own, on a simulated device of `memory` and on as many of them
    as asked for. It must end with success and say nothing on stderr. Returns what it
    printed. Other keywords are environment variables."""

    def run(
        body, *arguments, memory="1GiB", devices=1, options=(), timeout=60, **environ
    ):
        module = request.module.__name__
        code = (
            f"import sys; sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]\n"
            f"import {module}; {module}.{body.__name__}(*{arguments!r})"
        )
        done = script(
            code,
            options=options,
            timeout=timeout,
            GPUMEM_BACKEND="sim",
            GPUMEM_SIM_MEMORY=memory,
            GPUMEM_SIM_DEVICES=str(devices),
            **environ,
        )
        assert done.stderr == ""
        assert done.returncode == 0
        return done.stdout

    return run
