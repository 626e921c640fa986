"""What learning gives, over seeds: the demo's three models, what each part of training adds, and the solar modules.

    python benchmarks/learning.py demo
    python benchmarks/learning.py ablations
    python benchmarks/learning.py solar --data solar/ --init lite0.safetensors

Every run is a recipe with some values changed, trained for the recipe's minutes and evaluated on the test split.
Results are kept in benchmarks/results/learning-SUITE.json as they come; a run that is there is not done again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torchmetrics.functional.classification import binary_auroc

from foveate import runs
from foveate.checkpoints import load
from foveate.complexity import count_flops
from foveate.data.catalog import for_evaluation, open_split
from foveate.data.examples import LabelledData
from foveate.evaluation import Contender, evaluate
from foveate.models import TNet
from foveate.recipes import read_recipe
from foveate.sources import as_source
from foveate.teaching import scan

# name -> recipe, and what is changed in it
SUITES: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "demo": {
        "TNet": ("garments-tnet", ()),
        "whole scene, 64 px": ("garments-low", ()),
        "whole scene, 512 px": ("garments-full", ()),
    },
    "ablations": {
        "as the demo": ("garments-tnet", ()),
        "no per-feature regularisation": ("garments-tnet", ("objective.combined=1.0", "objective.sequence=1.0")),
        "no location pre-training": ("garments-tnet", ("teaching.share=0.0",)),
        "no REINFORCE": ("garments-tnet", ("objective.reinforcement=0.0",)),
        "level weights 3 : 1": ("garments-tnet", ("objective.level_weights=[3.0, 1.0]",)),
        "location dropout 0.5": ("garments-tnet", ("walk.location_dropout=0.5",)),
    },
    "solar": {
        "TNet": ("solar-tnet", ()),
        "whole module, low": ("solar-low", ()),
        "whole module, high": ("solar-high", ()),
    },
}
DIALS = {"demo": range(6), "ablations": range(6), "solar": (0, 1, 2, 3, 4, 5, 6, 24)}
TEST_IMAGES = {"demo": 1000, "ablations": 1000, "solar": 400}
FIGURES = ("accuracy", "auc", "attended", "milliseconds")


def main() -> None:
    """Trains, evaluates, keeps, and prints means and spreads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--init", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, help="instead of the recipes' own")
    parser.add_argument("--only", nargs="*", help="names of the runs to do")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    output = asked.output or Path(__file__).parent / "results" / f"learning-{asked.suite}.json"
    found: dict[str, Any] = json.loads(output.read_text()) if output.is_file() else {}
    for seed in range(asked.seeds):
        for name in asked.only or SUITES[asked.suite]:
            key = f"{name}/{seed}"
            if key not in found:
                found[key] = run(asked, name, seed)
                output.parent.mkdir(parents=True, exist_ok=True)
                output.write_text(json.dumps(found, indent=1) + "\n")
                told = [(row["locations"], row["accuracy"], row["auc"]) for row in found[key]["scores"]]
                print(key, told, flush=True)
    report(found)


def run(asked: argparse.Namespace, name: str, seed: int) -> dict[str, Any]:
    """One training run and its evaluation."""
    recipe_name, changes = SUITES[asked.suite][name]
    timed = [f"schedule.minutes={asked.minutes}"] if asked.minutes else []
    recipe = read_recipe(recipe_name, [*changes, *timed, f"engine.seed={seed}", f"data.seed={seed}"])
    with tempfile.TemporaryDirectory() as folder:
        outcome = runs.train(recipe, asked.data, Path(folder) / "run", init=asked.init)
        model = load(outcome.model)
    dial = DIALS[asked.suite] if isinstance(model, TNet) else (0,)
    contenders = [
        Contender(name=name, model=model, prepare=for_evaluation(recipe.data), locations=(count,) if count else ())
        for count in dial
    ]
    # The test split's own seed is the same for all, so that all are asked the same.
    questions = dataclasses.replace(recipe.data, seed=0)
    asked_of = open_split(questions, asked.data, "test", count=TEST_IMAGES[asked.suite])
    scores = [dataclasses.asdict(score) for score in evaluate(contenders, asked_of)]
    if asked.suite == "solar" and isinstance(model, TNet):
        scores.append(full_scan(contenders[0], asked_of))
    return {
        "steps": outcome.steps,
        "images": outcome.steps * recipe.plan.schedule.batch,
        "seconds": outcome.seconds,
        "scores": scores,
    }


@torch.no_grad()
def full_scan(contender: Contender, data: LabelledData) -> dict[str, Any]:
    """The ceiling: every cell is looked at by itself, and the one that looks worst speaks for all."""
    assert isinstance(contender.model, TNet)
    claims, labels = [], []
    for index in range(len(data)):
        source = as_source(contender.prepare(data[index], torch.Generator()))
        claims.append(float(scan(contender.model, [source]).softmax(-1)[0, :, 1].max()))
        labels.append(data[index].label)
    cells = contender.model.grid.cells
    one, two = (count_flops(contender.model, (1, 1), (count,)).flops for count in (1, 2))
    return {
        "name": "full scan, maximum",
        "locations": [cells],
        "glimpses": cells,
        "flops": cells * (two - one),
        "accuracy": None,
        "auc": float(binary_auroc(torch.tensor(claims), torch.tensor(labels))),
        "attended": None,
        "milliseconds": None,
    }


def report(found: dict[str, Any]) -> None:
    """Means and standard deviations over seeds, as a table in Markdown."""
    rows = defaultdict(list)
    for result in found.values():
        for score in result["scores"]:
            rows[score["name"], tuple(score["locations"])].append(score)
    print("\n| | locations | glimpses | M FLOPs | " + " | ".join(FIGURES) + " | seeds |\n|" + "---|" * 9)
    for (name, locations), scores in rows.items():
        cells = [spread([score[figure] for score in scores]) for figure in FIGURES]
        shown = ",".join(map(str, locations)) or "-"
        head = f"| {name} | {shown} | {scores[0]['glimpses']} | {scores[0]['flops'] / 1e6:.1f} | "
        print(head + " | ".join(cells) + f" | {len(scores)} |")


def spread(values: list[float | None]) -> str:
    """Mean and standard deviation."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return "-"
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
    return f"{statistics.mean(numbers):.3f} ± {deviation:.3f}"


if __name__ == "__main__":
    main()
