# SPDX-License-Identifier: MIT
"""PyTorch on gpumem's memory, with PyTorch and a GPU: a process a test, for torch takes
an allocator once."""

import importlib.util

import pytest

import gpumem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="torch is not installed"
    ),
]

HEAD = """if True:
    import gc, torch, gpumem
    import gpumem.interop.torch as adaptor
    MIB = 1 << 20
    pool = gpumem.get_default_memory_pool()
    def held():
        return gpumem.stats_by_client().get("torch", {}).get("used_bytes", 0)
"""


@pytest.fixture
def run(script):
    """Runs code after HEAD; the lines that it printed. Nothing may be on stderr, at the
    end of the process either."""

    def run(code):
        lines = "\n".join(f"    {line[8:]}" for line in code.splitlines())
        done = script(HEAD + lines, timeout=180, GPUMEM_BACKEND="cuda")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr[-3000:]
        return done.stdout.splitlines()

    return run


def test_tensors_are_blocks_of_the_pool(run):
    assert run("""
        adaptor.enable()
        adaptor.enable()
        x = torch.arange(MIB, dtype=torch.float32, device="cuda")
        print(held() // MIB, torch.cuda.get_allocator_backend())
        y = (x * 2).sum()
        print(int(y) == int((torch.arange(MIB, dtype=torch.float32) * 2).sum()))
        del x, y
        print(held())
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        print(pool.total_bytes() < 64 * MIB)
        try: adaptor.disable()
        except RuntimeError as error: print(error)
    """) == [
        "4 pluggable",
        "True",
        "0",
        "True",
        "torch does not change its allocator a second time; using() is for a part of a "
        "program",
    ]


def test_the_same_losses_to_the_last_bit(run):
    """Of a small training, without gpumem and with it."""
    losses = """
        torch.manual_seed(1)
        torch.backends.cuda.matmul.allow_tf32 = False
        net = torch.nn.Sequential(
            torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 16)).cuda()
        step = torch.optim.AdamW(net.parameters(), lr=1e-3)
        for i in range(20):
            data = torch.randn(64 + i, 256, device="cuda")
            loss = net(data).square().mean()
            step.zero_grad(); loss.backward(); step.step()
            print(loss.item().hex())
    """
    assert run(losses) == run("        adaptor.enable()" + losses)


def test_out_of_memory_is_torchs_and_the_process_goes_on(run):
    kind, text, after = run("""
        adaptor.enable()
        keep = torch.zeros(MIB, device="cuda")
        pool.set_limit(size=64 * MIB)
        try:
            torch.empty(128 * MIB, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            print(type(error).__name__)
            print(str(error).splitlines()[0])
        pool.set_limit(size=0)
        keep = torch.ones(128 * MIB, dtype=torch.uint8, device="cuda")
        print(int(keep.sum(dtype=torch.int64)) // MIB)
    """)
    assert (kind, after) == ("OutOfMemoryError", "128")
    assert text.startswith("CUDA out of memory. Out of memory: 134,217,728 bytes")


def test_garbage_makes_room(run):
    assert run("""
        adaptor.enable()
        gc.disable()
        pool.set_limit(size=64 * MIB)
        ring = [torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")]
        ring.append(ring)
        del ring
        torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
        print(held(), pool.stats()["out_of_memory"])
    """) == ["0 0"]


def test_a_recorded_stream_keeps_memory_from_others(run):
    assert run("""
        adaptor.enable()
        side = torch.cuda.Stream()
        x = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
        address = x.data_ptr()
        torch.cuda._sleep(1)  # kernels are loaded when first used, which waits
        x.fill_(1)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(int(2e9))
            x.fill_(7)
        x.record_stream(side)
        del x
        y = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
        print(y.data_ptr() != address, pool.stats()["pending_bytes"] == 4 * MIB)
        side.synchronize()
        print(pool.stats()["pending_bytes"])
    """) == ["True True", "0"]


def test_streams_have_caches_of_their_own(run):
    assert run("""
        adaptor.enable()
        side = torch.cuda.Stream()
        def address():
            return torch.empty(MIB, dtype=torch.uint8, device="cuda").data_ptr()
        main = address()
        with torch.cuda.stream(side):
            other = address()
            print(other != main, address() == other)
        print(address() == main)
    """) == ["True True", "True"]


@pytest.mark.parametrize("paged", [False, True])
def test_a_graph_keeps_its_memory(run, paged):
    """What it was recorded with goes to nobody else, however much is asked for."""
    assert run(f"""
        own = gpumem.MemoryPool(expandable_segments={paged})
        adaptor.enable(own)
        x = torch.arange(MIB, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = ((x + 1) * 2).cumsum(0) // 3
        print(own.stats()["captured_bytes"] >= 8 * MIB)
        others = [torch.full((MIB,), -1.0, device="cuda") for _ in range(16)]
        torch.cuda.empty_cache()
        for start in range(3):
            x.copy_(torch.arange(MIB, device="cuda") + start)
            graph.replay()
            expected = ((x + 1) * 2).cumsum(0) // 3
            print(torch.equal(y, expected))
        print(all(bool((o == -1).all()) for o in others))
        del graph, y
        print(own.stats()["captured_bytes"])
    """) == ["True"] * 5 + ["0"]


def test_graphs_share_memory(run):
    assert run("""
        adaptor.enable()
        x = torch.ones(4 * MIB, device="cuda")
        handle, graphs, seen = torch.cuda.graph_pool_handle(), [], []
        for factor in (2, 3):
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1], pool=handle):
                seen.append((x * factor).sum())
            print(pool.stats()["captured_bytes"] >> 20)
        for graph in graphs: graph.replay()
        print([float(y) / (4 * MIB) for y in seen])
        del graphs[0], graph
        print(pool.stats()["captured_bytes"] >> 20)
        graphs[0].replay()
        print(float(seen[1]) / (4 * MIB))
        graphs.clear()
        print(pool.stats()["captured_bytes"])
    """) == ["16", "16", "[2.0, 3.0]", "16", "3.0", "0"]


def test_training_by_graphs_gives_the_same_losses(run):
    """By make_graphed_callables, whose backward is recorded by autograd's thread."""
    losses = """
        import warnings; warnings.simplefilter("ignore")  # torch's own, of its threads
        torch.manual_seed(1)
        torch.backends.cuda.matmul.allow_tf32 = False
        net = torch.nn.Sequential(
            torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 16)).cuda()
        data = [torch.randn(64, 256, device="cuda") for _ in range(20)]
        net = torch.cuda.make_graphed_callables(net, (data[0].clone(),))
        step = torch.optim.AdamW(net.parameters(), lr=1e-3)
        for x in data:
            loss = net(x).square().mean()
            step.zero_grad(); loss.backward(); step.step()
            print(loss.item().hex())
    """
    assert run(losses) == run("        adaptor.enable()" + losses)


def test_a_recording_that_fails_leaves_the_allocator_usable(run):
    assert run("""
        adaptor.enable()
        x = torch.zeros(MIB, device="cuda")
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                y = x + 1
                torch.cuda.synchronize()  # forbidden
        except RuntimeError: print("failed")
        try: del y
        except NameError: pass
        second = torch.cuda.CUDAGraph()
        with torch.cuda.graph(second): y = x + 2
        second.replay()
        print(float(y.sum()) / MIB)
        big = torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda")
        del big
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        print(pool.total_bytes() < 64 * MIB)
    """) == ["failed", "2.0", "True"]


def test_mem_pools_are_refused_with_the_way_out(run):
    lines = run("""
        adaptor.enable()
        x = torch.zeros(10, device="cuda")
        try: torch.cuda.MemPool()
        except RuntimeError as error: print("does not yet support" in str(error))
        try: adaptor.memory_pool()
        except RuntimeError as error: print(error)
        print(int((x + 1).sum()))
    """)
    assert lines == ["True", "gpumem is torch's allocator already: enable()", "10"]


def test_the_figures_by_torchs_names(run):
    assert run("""
        adaptor.enable()
        x = torch.zeros(1000, dtype=torch.uint8, device="cuda")
        stats = adaptor.memory_stats()
        print(stats["allocated_bytes.all.current"], stats["active.all.current"])
        print(stats["requested_bytes.all.current"])
        try: torch.cuda.memory_stats()
        except RuntimeError as error: print("does not yet support" in str(error))
        torch.cuda.set_per_process_memory_fraction(0.5)
        print(pool.get_limit() * 2 - torch.cuda.mem_get_info()[1] in (0, -1))
    """) == ["1024 1", "1000", "True", "True"]


def test_expandable_segments(run):
    assert run("""
        own = gpumem.MemoryPool(expandable_segments=True)
        adaptor.enable(own)
        like = dict(dtype=torch.uint8, device="cuda")
        x = [torch.ones(i * MIB, **like) for i in range(1, 20)]
        print(sum(int(t.sum(dtype=torch.int64)) for t in x) // MIB)
        print(own.stats_by_client()["torch"]["used_bytes"] // MIB)
    """) == ["190", "190"]


def test_using_is_below_torchs_own_cache(run):
    assert run("""
        before = torch.ones(MIB, device="cuda")
        with adaptor.using():
            x = torch.ones(30 * MIB, dtype=torch.uint8, device="cuda")
            print(held() // MIB >= 30, torch.cuda.memory_allocated() // MIB >= 30)
        print(int(x.sum(dtype=torch.int64)) // MIB)
        outside = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
        print(held() // MIB < 64)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph): y = before + 1
        graph.replay()
        print(float(y[0]))
        pool.set_limit(size=pool.total_bytes())
        with adaptor.using():
            try: torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError as error: print(type(error).__name__)
        with adaptor.using():
            del x
            x = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
        print(held() // MIB)  # from torch's cache
        try: adaptor.enable()
        except RuntimeError as error: print("initialized" in str(error))
    """) == ["True True", "30", "True", "2.0", "OutOfMemoryError", "30", "True"]


def test_two_devices(run):
    if gpumem.get_device_count() < 2:
        pytest.skip("needs two devices")
    assert run("""
        adaptor.enable()
        x = torch.ones(4 * MIB, dtype=torch.uint8, device="cuda:0")
        y = torch.ones(2 * MIB, dtype=torch.uint8, device="cuda:1")
        print([pool.used_bytes(device=d) // MIB for d in (0, 1)])
        z = x.to("cuda:1")
        print([int(t.sum(dtype=torch.int64)) // MIB for t in (z, y)])
        torch.cuda.set_device(1)
        del x, y, z
        print([pool.used_bytes(device=d) for d in (0, 1)])
    """) == ["[4, 2]", "[4, 2]", "[0, 0]"]


def test_threads(run):
    assert run("""
        import threading
        adaptor.enable()
        def work(n):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for i in range(200):
                    x = torch.full((1 + (i * 37 + n) % 500, 1000), n, device="cuda")
                    if i % 50 == 0: bad.append(int((x != n).sum()))
            stream.synchronize()
        bad = []
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for t in threads: t.start()
        for t in threads: t.join(120)
        print(set(bad), held())
    """) == ["{0} 0"]


def test_live_tensors_at_the_end_are_silent(run):
    assert run("""
        adaptor.enable()
        kept = [torch.zeros(MIB, device="cuda") for _ in range(10)]
        torch.kept = kept
        net = torch.nn.Linear(10, 10).cuda()
        net(torch.zeros(1, 10, device="cuda")).sum().backward()
        print("end")
    """) == ["end"]
