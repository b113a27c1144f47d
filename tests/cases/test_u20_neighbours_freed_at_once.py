# SPDX-License-Identifier: MIT
"""Two threads that freed neighbouring pieces at once corrupted the list of blocks;
later calls met an invalid device pointer. cupy#317, cupy#382,
https://github.com/cupy/cupy/issues/317"""

import pytest
from casekit import MIB, UNIT, in_step

from gpumem import testing

PIECES = 2048
ROUNDS = 60


@pytest.mark.timeout(120)
@pytest.mark.parametrize("threads", [2, 3])
def test_u20_the_whole_comes_back_each_round(pool, in_threads, threads):
    """Each thread frees its pieces one after the other, while the neighbours of these
    go in the other threads."""
    whole = pool.malloc(MIB)
    address = whole.ptr
    del whole
    shares = [[] for _ in range(threads)]

    def cut(index):
        if index == 0:
            pieces = [pool.malloc(UNIT) for _ in range(PIECES)]
            assert pool.total_bytes() == pool.used_bytes() == MIB
            for i in range(threads):
                shares[i] = pieces[i::threads]

    def free(index):
        shares[index].clear()

    def look(index):
        if index == 0:
            assert pool.n_free_blocks() == 1
            assert pool.malloc(MIB).ptr == address

    in_step(in_threads, threads, ROUNDS, cut, free, look)
    stats = pool.stats()
    assert stats["misses"] == stats["upstream_allocations"] == 1
    assert stats["segments"] == 1
    testing.check_pool(pool)
