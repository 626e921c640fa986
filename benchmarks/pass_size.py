"""How many glimpses should go through a network together on a CPU: the measurement behind CPU_PASS_PIXELS.

python benchmarks/pass_size.py [--backbone tf_efficientnet_b0] [--base 224] [--repeats 9]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from foveate.backbones import build_network

SIZES = (1, 2, 4, 8, 16, 32)


def main() -> None:
    """Prints milliseconds per glimpse for passes of several sizes, timed in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="tf_efficientnet_b0")
    parser.add_argument("--base", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    network = build_network(arguments.backbone, in_chans=3).eval()
    glimpses = torch.rand(max(SIZES), 3, arguments.base, arguments.base)
    taken: dict[int, list[float]] = {size: [] for size in SIZES}
    with torch.inference_mode():
        for repeat in range(arguments.repeats + 1):
            for size in SIZES:
                started = time.perf_counter()
                for part in glimpses.split(size):
                    network(part)
                if repeat:
                    taken[size].append((time.perf_counter() - started) * 1e3 / len(glimpses))
    for size, times in taken.items():
        print(f"{size:3d} together: {statistics.median(times):6.1f} ms per glimpse")


if __name__ == "__main__":
    main()
