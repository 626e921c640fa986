"""The figures that the core promises, measured side by side; exit code 1 when one is missed.

    python benchmarks/core.py [--repeats 9] [--output benchmarks/results/core.json]

TNet on fMoW's geometry at 896 px with (2, 1) locations, batches of 16, against EfficientNet-B0 on whole images and
against the limit, the bare backbone on the same number of glimpses. Takes about five minutes on two cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from foveate import benchmark, tables

PROMISES = {"walk_over_limit": ("at most", 1.05), "speedup": ("at least", 3.0), "memory": ("at most", 0.35)}


def main() -> int:
    """Measures, prints, writes, and compares with the promises."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    settings = [benchmark.Setting(image=896, locations=(2, 1))]
    result = benchmark.run(
        "tnet_fmow", "efficientnet_b0", settings, batch=16, repeats=arguments.repeats, advance=print
    )
    tables.print_benchmark(result)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(dataclasses.asdict(result), indent=2) + "\n")
    missed = 0
    for name, (relation, bound) in PROMISES.items():
        value = getattr(result.ratios[0], name)
        kept = value <= bound if relation == "at most" else value >= bound
        missed += not kept
        print(f"{name}: {value:.3f}, promised {relation} {bound}: {'kept' if kept else 'MISSED'}")
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
