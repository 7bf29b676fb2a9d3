"""``python -m benchmarks.torch_models [--devices cuda:0,opencl:0] [--compile] [MODEL:IMAGES ...]``.

Models of torchvision with random weights through ``torch.export``, f32, images of 224 x 224, beside
PyTorch on the first GPU, or on the CPU where there is none. Written are the median of 20 runs, with
the result copied to the host, and the largest distance from the result in float64, of its largest.
"""

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import numpy as np
import torch
import torchvision

import ggsched

DEFAULTS: Final = (
    "resnet50:1", "resnet50:16", "mobilenet_v3_large:1", "mobilenet_v3_large:16",
    "efficientnet_b0:1", "vit_b_16:1", "vit_b_16:16",
)  # fmt: skip
WARM, ROUNDS = 4, 20


def main() -> int:
    """Measure and print a row for each model."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch_models", description=__doc__)
    parser.add_argument("models", nargs="*", default=DEFAULTS, metavar="MODEL:IMAGES")
    parser.add_argument(
        "--devices", default="cuda:0", help="each of them alone; with commas between"
    )
    parser.add_argument("--compile", action="store_true", help="torch.compile beside eager")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for entry in options.models:
        name, _, images = entry.partition(":")
        sides = _sides(name, int(images or 1), options.devices.split(","), options.compile)
        sys.stdout.write(f"{entry}: {'; '.join(sides)}\n")
        sys.stdout.flush()
    return 0


def _sides(name: str, images: int, devices: list[str], compiles: bool) -> list[str]:
    """Return what each side took."""
    torch.manual_seed(0)
    model = getattr(torchvision.models, name)(weights=None).eval()
    given = (torch.randn(images, 3, 224, 224),)
    with torch.no_grad():
        exact = model.double()(given[0].double()).numpy()
        graph = ggsched.from_torch(torch.export.export(model.float(), given))
        rows = [_on(graph, device, given, exact) for device in devices]
        place = "cuda" if torch.cuda.is_available() else "cpu"
        there, image = model.to(place), given[0].to(place)
        rows.append(f"PyTorch on {place} {_ms(lambda: there(image).cpu()):.2f} ms")
        if compiles:
            fast = torch.compile(there, mode="reduce-overhead")
            rows.append(f"compiled {_ms(lambda: fast(image).cpu()):.2f} ms")
    return rows


def _on(graph: Any, device: str, given: tuple[Any, ...], exact: Any) -> str:
    with ggsched.Scheduler([device], weights=graph.weight) as scheduler:
        found = graph.run(scheduler, given)
        first = next(iter(found.values())) if isinstance(found, dict) else found[0]
        distance = np.abs(np.asarray(first) - exact).max() / np.abs(exact).max()
        took = _ms(lambda: graph.run(scheduler, given))
    return f"{device} {took:.2f} ms, off by {distance:.1e}"


def _ms(call: Callable[[], object]) -> float:
    """Return the median time of a call whose result is on the host when it returns."""
    seconds = []
    for _ in range(WARM + ROUNDS):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return 1e3 * median(seconds[WARM:])


if __name__ == "__main__":
    sys.exit(main())
