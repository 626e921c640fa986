"""Records as tables for people at a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from foveate.backbones import LocationMap
    from foveate.benchmark import Result
    from foveate.complexity import Description
    from foveate.demonstration import Demonstration
    from foveate.evaluation import Score
    from foveate.fitting import Outcome
    from foveate.recipes import Recipe

out = Console()


def print_demonstration(shown: Demonstration) -> None:
    """How the three models did at what cost, and where to see walks."""
    title = f"Naming the garment in scenes never seen, after {shown.minutes:g} minutes of training each"
    print_scores(shown.scores, title=title)
    out.print(
        "open: cells that were opened. attended: in how many scenes the garment lies wholly in one of them. "
        "MFLOPs and ms are of one scene. Walks are drawn in:"
    )
    for picture in shown.pictures:
        out.print(f"  {picture}", highlight=False)


def print_scores(scores: Sequence[Score], *, title: str) -> None:
    """A line for each model and number of locations."""
    columns = {
        "model": [score.name for score in scores],
        "open": [",".join(map(str, score.locations)) or "-" for score in scores],
        "right": [f"{score.accuracy:.1%}" for score in scores],
        "AUC": ["-" if score.auc is None else f"{score.auc:.3f}" for score in scores],
        "attended": ["-" if score.attended is None else f"{score.attended:.1%}" for score in scores],
        "glimpses": [str(score.glimpses) for score in scores],
        "MFLOPs": [f"{score.flops / 1e6:.1f}" for score in scores],
        "ms": [f"{score.milliseconds:.1f}" for score in scores],
    }
    told = {heading: cells for heading, cells in columns.items() if set(cells) != {"-"}}
    table = Table(title=title)
    for heading in told:
        table.add_column(heading, no_wrap=True, justify="left" if heading == "model" else "right")
    for row in zip(*told.values(), strict=True):
        table.add_row(*row)
    out.print(table)


def print_description(told: Description) -> None:
    """Parameters, cost, geometry, and the location map with its rivals."""
    width, height = told.image_size
    out.print(
        f"[bold]{told.model}[/bold] on {told.backbone}, {told.num_classes} classes, {told.in_chans} channels, "
        f"images of {width} x {height} px"
    )
    out.print(
        f"parameters: {told.parameters.trainable:,} trainable, {told.parameters.total:,} with moving statistics"
    )
    cost = Table("locations", "glimpses", "FLOPs (B)", "with SE gates (B)", title="Cost of one image")
    for row in told.dial:
        shown = ",".join(map(str, row.locations)) or "0"
        billions = (f"{flops / 1e9:.4f}" for flops in (row.flops, row.flops_with_gates))
        cost.add_row(shown if told.levels else "-", str(row.glimpses), *billions)
    out.print(cost)
    if told.levels:
        _print_levels(told)
    if told.location_map is not None:
        _print_location_map(told, told.location_map)


def _print_levels(told: Description) -> None:
    table = Table("level", "candidates", "region (px)", "image px per glimpse px", title="What each level sees")
    for level in told.levels:
        shrink = " x ".join(f"{value:.2f}" for value in level.shrink)
        table.add_row(str(level.level), str(level.candidates), f"{level.width:g} x {level.height:g}", shrink)
    out.print(table)


def _print_location_map(told: Description, chosen: LocationMap) -> None:
    best = told.automatic
    shown = sorted(told.candidates, key=lambda candidate: -candidate.overlap)[:8]
    table = Table(title="Location map: the layers that fit the cells best", caption="all of them: --json")
    for heading in ("layer", "channels", "map", "stride", "sees (px)", "overlap", "rows"):
        table.add_column(heading, no_wrap=True)
    for candidate in (c for c in told.candidates if c in shown or c.map.layer == chosen.layer):
        table.add_row(
            f"{'* ' if candidate.map.layer == chosen.layer else '  '}{candidate.map.layer}",
            str(candidate.map.channels),
            f"{candidate.height} x {candidate.width}",
            f"{candidate.stride:g}",
            f"{candidate.field:g}",
            f"{candidate.overlap:.3f}",
            ",".join(map(str, candidate.map.rows)),
        )
    out.print(table)
    rule = "the layer whose receptive fields, taken at 7/8 of their side, overlap the grid's cells most"
    pixels = f"rows {','.join(map(str, chosen.rows))} and columns {','.join(map(str, chosen.columns))}"
    if best is not None and best.map == chosen:
        out.print(f"chosen: {chosen.layer}, {pixels}: {rule}")
    else:
        would = f"{best.map.layer}, rows {','.join(map(str, best.map.rows))}" if best else "none"
        out.print(f"chosen: {chosen.layer}, {pixels}: given, not found. Found would be {would}: {rule}")


def print_benchmark(result: Result) -> None:
    """All cases, and the figures that matter."""
    models = list(dict.fromkeys(row.case.model for row in result.rows))
    batch = result.rows[0].case.batch
    against = models[1] if len(models) > 1 else "its backbone"
    table = Table(title=f"{models[0]} against {against} on the whole image, batches of {batch}")
    for heading in ("", "px", "locations", "glimpses", "ms/image", "peak MB", "working"):
        table.add_column(heading, no_wrap=True)
    for row in result.rows:
        case = row.case
        table.add_row(
            case.kind,
            str(case.setting.image),
            ",".join(map(str, case.setting.locations)) if case.kind in ("walk", "limit") else "-",
            str(row.glimpses),
            f"{row.milliseconds:.1f}",
            f"{row.peak_megabytes:.0f}",
            f"{row.working_megabytes:.0f}",
        )
    out.print(table)
    for ratio in result.ratios:
        shown = ",".join(map(str, ratio.setting.locations))
        out.print(
            f"{ratio.setting.image} px, locations {shown}: walk / limit {ratio.walk_over_limit:.3f}; "
            f"{ratio.speedup:.2f} x faster than the whole image; "
            f"peak memory {ratio.memory:.3f} of the whole image's in one batch, "
            f"{ratio.memory_one_by_one:.3f} of it one by one"
        )
    out.print(
        "limit: the bare backbone on as many glimpses. working: what a run adds, in MB, to a process that holds the "
        f"model and its images. torch {result.torch}, {result.threads} threads."
    )


def print_outcome(outcome: Outcome) -> None:
    """Where the model is, and how good."""
    best = "" if outcome.best is None else f", at best {outcome.best:.4f} in validation"
    out.print(f"{outcome.steps} steps in {outcome.seconds / 60:.1f} minutes of training{best} -> {outcome.model}")


def print_recipes(known: Sequence[Recipe]) -> None:
    """A line each."""
    table = Table("recipe", "trains", "cost", "expected")
    for recipe in known:
        table.add_row(recipe.name, recipe.about.title, recipe.about.cost, recipe.about.expected)
    out.print(table)
