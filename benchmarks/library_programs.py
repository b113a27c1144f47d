# SPDX-License-Identifier: MIT
"""Programs of other libraries, as people run them, over an allocator.

    python3 -m benchmarks.library_programs PROGRAM ALLOCATOR

runs one in this process, which is for nothing else, a step for each line of input
(turns.py). Told of each step, as JSON: how long it took and what it computed, to the
last bit; how many MiB the allocator has held at the most until then; of gpumem's pools
also how many pages have moved, and how long its calls of the driver took. Weights and
data are drawn by a seed; nothing is downloaded.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import gpumem

MIB = 1 << 20

Step = Callable[[], float]
"""One step of a program: its result, once the device has done it."""


# ---- CuPy ----


def cupy_mixed() -> Step:
    """FFT filters, conjugate gradients on a sparse matrix, sorting, k-means, each time
    of another size."""
    cupy = import_module("cupy")
    sparse = import_module("cupyx.scipy.sparse")
    solve = import_module("cupyx.scipy.sparse.linalg").cg
    sizes = random.Random(7)
    numbers = cupy.random.RandomState(7)

    def filtered(size: int) -> Any:
        spectrum = cupy.fft.rfft(numbers.standard_normal(size))
        spectrum[size // 8 :] = 0
        return cupy.abs(cupy.fft.irfft(spectrum)).max()

    def solved(side: int) -> Any:
        rows = side * side
        near, far = cupy.full(rows - 1, -1.0), cupy.full(rows - side, -1.0)
        bands = [cupy.full(rows, 4.5), near, near, far, far]
        matrix = sparse.diags(bands, [0, 1, -1, side, -side], format="csr")
        return cupy.abs(solve(matrix, cupy.ones(rows), maxiter=30)[0]).max()

    def clustered(points: int) -> Any:
        data = numbers.standard_normal((points, 8))
        centres = data[:16].copy()
        for _ in range(5):
            distances = ((data[:, None, :] - centres[None]) ** 2).sum(axis=2)
            of = cupy.eye(16)[distances.argmin(axis=1)]
            centres = of.T @ data / cupy.maximum(of.sum(axis=0), 1)[:, None]
        return cupy.abs(centres).max()

    def step() -> float:
        scale = sizes.uniform(0.5, 2)
        found = filtered(int(scale * (1 << 22))) + solved(int(scale * 500))
        found += cupy.sort(numbers.random_sample(int(scale * (1 << 22))))[1000]
        return float(found + clustered(int(scale * 100_000)))

    return step


# ---- PyTorch ----


def _torch(repeatable: bool = True) -> Any:
    torch = import_module("torch")
    torch.manual_seed(7)
    torch.use_deterministic_algorithms(repeatable, warn_only=True)
    torch.backends.cudnn.benchmark = False
    return torch


def _training(
    torch: Any, model: Any, batches: Iterator[Any], loss_of: Callable[[Any], Any]
) -> Step:
    """Trains by AdamW, a batch a step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> float:
        loss = loss_of(next(batches))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return float(loss)

    return step


def gpt2() -> Step:
    """Training GPT-2 on sequences of different lengths."""
    torch = _torch()
    transformers = import_module("transformers")
    config = transformers.GPT2Config(attn_implementation="eager")
    model = transformers.GPT2LMHeadModel(config).cuda().train()
    lengths = random.Random(7)

    def batches() -> Iterator[Any]:
        while True:
            shape = (8, 16 * lengths.randrange(16, 65))
            yield torch.randint(0, config.vocab_size, shape).cuda()

    return _training(torch, model, batches(), lambda ids: model(ids, labels=ids).loss)


def resnet50() -> Step:
    """Training ResNet-50 on images of different resolutions."""
    torch = _torch()
    model = import_module("torchvision.models").resnet50(weights=None).cuda().train()
    sides = random.Random(7)

    def batches() -> Iterator[Any]:
        while True:
            side = 32 * sides.randrange(5, 10)
            images = torch.randn(128, 3, side, side).cuda()
            yield images, torch.randint(0, 1000, (128,)).cuda()

    def loss_of(batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    return _training(torch, model, batches(), loss_of)


def faster_rcnn() -> Step:
    """Training Faster R-CNN on images of different sizes. The gradient of its region
    pooling is summed in no fixed order, so losses differ from run to run; where torch
    is to be deterministic torchvision has another pooling, which takes minutes."""
    torch = _torch(repeatable=False)
    detection = import_module("torchvision.models.detection")
    model = detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None)
    model = model.cuda().train()
    sides = random.Random(7)

    def targets(height: int, width: int) -> dict[str, Any]:
        corner = torch.rand(10, 2) * torch.tensor([width / 2, height / 2])
        extent = 20 + torch.rand(10, 2) * torch.tensor([width / 3, height / 3])
        boxes = torch.cat([corner, corner + extent], dim=1)
        return {"boxes": boxes.cuda(), "labels": torch.randint(1, 91, (10,)).cuda()}

    def batches() -> Iterator[Any]:
        while True:
            shapes = [(sides.randrange(500, 900), sides.randrange(500, 900))] * 4
            yield (
                [torch.rand(3, *shape).cuda() for shape in shapes],
                [targets(*shape) for shape in shapes],
            )

    return _training(torch, model, batches(), lambda of: sum(model(*of).values()))


PROGRAMS = {
    "cupy_mixed": cupy_mixed,
    "gpt2": gpt2,
    "resnet50": resnet50,
    "faster_rcnn": faster_rcnn,
}


# ---- running one ----


def _use(library: str, allocator: str) -> Callable[[], dict[str, float]]:
    """Sets the allocator; what tells the most bytes that it held, and what moving pages
    has cost gpumem's pool."""
    if allocator.startswith("gpumem"):
        pool = gpumem.MemoryPool(expandable_segments="expandable" in allocator)
        import_module(f"gpumem.interop.{library}").enable(pool)

        def tell() -> dict[str, float]:
            stats = pool.stats()
            return {
                "peak_mib": stats["peak_total_bytes"] / MIB,
                "moved": stats["remapped_pages"],
                "driver_ms": round(stats["driver_ns"] / 1e6, 3),
            }

        return tell
    held: Callable[[], int] = (
        import_module("cupy").get_default_memory_pool().total_bytes  # never trimmed
        if library == "cupy"
        else import_module("torch").cuda.max_memory_reserved
    )
    return lambda: {"peak_mib": held() / MIB}


def run(program: str, allocator: str) -> None:
    """Takes steps until the input ends."""
    tell = _use("cupy" if program == "cupy_mixed" else "torch", allocator)
    step = PROGRAMS[program]()
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        result = step().hex()
        spent = (time.perf_counter() - start) * 1e3
        print(json.dumps({"ms": spent, "result": result} | tell()), flush=True)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2])
