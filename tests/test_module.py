# SPDX-License-Identifier: MIT
"""The extension module in its process: loaded once, in the main interpreter, and not
upset by other interpreters."""

import sys

import pytest

SUBINTERPRETERS = """
try:
    import _interpreters as interpreters
    def run(code):
        made = interpreters.create("legacy")
        try:
            return interpreters.exec(made, code)
        finally:
            interpreters.destroy(made)
except ImportError:
    import _xxsubinterpreters as interpreters
    def run(code):
        made = interpreters.create(isolated=False)
        try:
            interpreters.run_string(made, code)
        except interpreters.RunFailedError as error:
            return error
        finally:
            interpreters.destroy(made)
"""


def test_a_second_copy_is_refused(script):
    done = script(
        """
import sys, gpumem
kept = gpumem.malloc(512)
for name in [name for name in sys.modules if name.startswith("gpumem")]:
    del sys.modules[name]
try:
    import gpumem
except ImportError as error:
    print("once in a process" in str(error))
del kept
"""
    )
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)


def test_the_package_without_its_extension_can_be_imported_again(script):
    done = script(
        """
import sys, gpumem
kept = gpumem.malloc(512)
del sys.modules["gpumem"]
import gpumem
print(gpumem.malloc(512).mem.size, type(kept) is gpumem.MemoryPointer)
"""
    )
    assert (done.stdout, done.stderr) == ("512 True\n", "")


@pytest.mark.parametrize("first", ["", "import gpumem"])
def test_another_interpreter_is_refused_and_the_main_one_is_not(script, first):
    done = script(
        f"""
{first}
{SUBINTERPRETERS}
failure = run("import gpumem")
print(failure is not None)
import gpumem
print(gpumem.malloc(512).mem.size)
"""
    )
    assert (done.stdout, done.stderr) == ("True\n512\n", "")


def test_a_failed_import_can_be_tried_again(script):
    done = script(
        """
import sys
sys.modules["atexit"] = None
try:
    import gpumem
except ImportError as error:
    print("atexit" in str(error))
del sys.modules["atexit"]
import gpumem
print(gpumem.malloc(512).mem.size)
"""
    )
    assert (done.stdout, done.stderr) == ("True\n512\n", "")


def test_memory_goes_back_detached_after_there_was_another_interpreter(script):
    """From then on the interpreter takes every thread for an attached one."""
    done = script(
        f"""
{SUBINTERPRETERS}
import gpumem
pool = gpumem.MemoryPool()
first, second = pool.malloc(1 << 20), pool.malloc(1 << 20)
del second
run("pass")
pool.free_all_blocks()
print(pool.total_bytes())
del first, pool
"""
    )
    assert (done.stdout, done.stderr, done.returncode) == ("1048576\n", "", 0)


@pytest.mark.skipif(sys.platform != "linux", reason="names a Linux suffix")
@pytest.mark.parametrize("name", ["memory_hooks", "testing"])
def test_its_other_modules_come_when_they_are_named(script, name):
    code = f"import gpumem; print(gpumem.{name}.__name__, hasattr(gpumem, 'nothing'))"
    done = script(code)
    assert (done.stdout, done.stderr) == (f"gpumem.{name} False\n", "")


def test_the_module_says_what_it_is():
    from gpumem import _core

    assert _core.__name__ == "gpumem._core"
    assert _core.__doc__
