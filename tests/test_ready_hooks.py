# SPDX-License-Identifier: MIT
"""The ready-made memory hooks: what they print and add up."""

import io
import json

import pytest

import gpumem
from gpumem import OutOfMemoryError
from gpumem.memory_hooks import DebugPrintHook, LineProfileHook

UNIT = 512
MIB = 1 << 20


def test_debug_print_hook_prints_json_lines(pool):
    file = io.StringIO()
    with DebugPrintHook(file=file):
        pointer = pool.malloc(1)
        address, ident = pointer.ptr, hex(id(pointer.mem))
        del pointer
    device = gpumem.get_device_id()
    block = {"mem_size": UNIT, "mem_ptr": address}
    expected = [
        {"hook": "alloc", "device_id": device, **block},
        {"hook": "malloc", "device_id": device, "size": 1, **block, "pmem_id": ident},
        {"hook": "free", "device_id": device, **block, "pmem_id": ident},
    ]
    lines = file.getvalue().splitlines()
    assert [json.loads(line) for line in lines] == expected
    assert [list(json.loads(line)) for line in lines] == [list(e) for e in expected]


def test_debug_print_hook_prints_to_stdout_as_it_is_then(pool, capsys):
    hook = DebugPrintHook()
    with hook:
        pool.malloc(0)
    assert json.loads(capsys.readouterr().out)["hook"] == "malloc"


@pytest.mark.parametrize("flush", [True, False])
def test_debug_print_hook_flushes_if_it_should(pool, flush):
    class File(io.StringIO):
        flushes = 0

        def flush(self):
            self.flushes += 1

    file = File()
    with DebugPrintHook(file, flush=flush):
        pool.malloc(UNIT)
    assert file.flushes == (3 if flush else 0)


PROFILED = """
def leaf(n):
    return pool.malloc(n)

def tree():
    leaf(1000)
    return [leaf(1536), leaf(512)]

with hook:
    tree()
"""


def profiled(pool, **options):
    hook = LineProfileHook(**options)
    names = {"pool": pool, "hook": hook}
    exec(compile(PROFILED, "tree.py", "exec"), names)
    names.clear()  # its functions may live as long as the process
    report = io.StringIO()
    hook.print_report(file=report)
    return report.getvalue()


def test_line_profile_hook_adds_up_by_line(pool):
    """The first request, of 1024 bytes, is kept and serves the last."""
    report = profiled(pool)
    start = report.index("tree.py:10:<module>")
    lines = report[start:].splitlines()
    margin = lines[1].index("tree.py")
    assert lines[0] == "tree.py:10:<module> (3.00KB, 2.50KB)"
    assert [line[margin:] for line in lines[1:]] == [
        "tree.py:6:tree (1.00KB, 1.00KB)",
        "  tree.py:3:leaf (1.00KB, 1.00KB)",
        "tree.py:7:tree (2.00KB, 1.50KB)",
        "  tree.py:3:leaf (2.00KB, 1.50KB)",
    ]
    assert report.splitlines()[0] == "_root (3.00KB, 2.50KB)"
    depths = [len(line) - len(line.lstrip()) for line in report.splitlines()]
    assert depths[: depths.index(margin) + 1] == list(range(0, margin + 1, 2))


@pytest.mark.parametrize(
    ("depth", "lines"),
    [
        (1, ["  tree.py:3:leaf (3.00KB, 2.50KB)"]),
        (
            2,
            [
                "  tree.py:6:tree (1.00KB, 1.00KB)",
                "    tree.py:3:leaf (1.00KB, 1.00KB)",
                "  tree.py:7:tree (2.00KB, 1.50KB)",
                "    tree.py:3:leaf (2.00KB, 1.50KB)",
            ],
        ),
    ],
)
def test_line_profile_hook_tells_only_the_innermost_apart(pool, depth, lines):
    assert profiled(pool, max_depth=depth).splitlines() == [
        "_root (3.00KB, 2.50KB)",
        *lines,
    ]


def test_line_profile_hook_counts_a_request_that_failed(pool):
    pool.set_limit(size=UNIT)
    with LineProfileHook(max_depth=1) as hook, pytest.raises(OutOfMemoryError):
        pool.malloc(MIB)
    report = io.StringIO()
    hook.print_report(report)
    assert report.getvalue().startswith("_root (1.00MB, 0B)\n")


@pytest.mark.parametrize(
    ("depth", "error"), [("x", TypeError), (1.5, TypeError), (-1, ValueError)]
)
def test_line_profile_hook_refuses_a_depth_that_is_none(depth, error):
    with pytest.raises(error):
        LineProfileHook(depth)


def test_a_file_that_is_false_is_a_file(pool, capsys):
    class Lines(list):
        def write(self, text):
            self.append(text)

        def flush(self):
            pass

    lines, report = Lines(), Lines()
    with DebugPrintHook(file=lines):
        pool.malloc(UNIT)
    LineProfileHook().print_report(report)
    assert "".join(lines).count("\n") == 3 and "".join(report) == "_root (0B, 0B)\n"
    assert capsys.readouterr().out == ""


def test_line_profile_hook_reports_to_stdout(capsys):
    LineProfileHook().print_report()
    assert capsys.readouterr().out == "_root (0B, 0B)\n"
