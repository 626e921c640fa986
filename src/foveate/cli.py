"""The command line: each command parses, calls one public function, and prints."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from foveate import __version__, tables

# What needs torch is imported by the command that uses it, so that --help and mistakes answer at once.

app = typer.Typer(
    name="foveate",
    help="Classify huge images by looking only where it matters.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
data_app = typer.Typer(name="data", help="Prepare data sets.", no_args_is_help=True)
app.add_typer(data_app)
err = Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of tables.")]
ModelName = Annotated[
    str,
    typer.Argument(help="A name that `foveate models` lists, or the folder of a saved model.", metavar="MODEL"),
]


@app.command()
def models(
    pattern: Annotated[str, typer.Argument(help="Shell pattern, e.g. 'tnet*'.")] = "*",
    as_json: AsJson = False,
) -> None:
    """List the models that can be created by name.

    Example: `foveate models 'tnet*'`
    """
    from foveate import list_models

    names = list_models(pattern)
    print(json.dumps(names) if as_json else "\n".join(names))


@app.command()
def info(
    model: ModelName,
    image: Annotated[str, typer.Option(help="Image size in pixels: 896, or WIDTHxHEIGHT.")] = "448",
    locations: Annotated[
        str | None, typer.Option(help="Cells to open per region of each level: 2,1. Usual ones if left out.")
    ] = None,
    num_classes: Annotated[int | None, typer.Option(help="Number of classes.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Any timm model, for `tnet` and `whole_image`.")] = None,
    base: Annotated[int | None, typer.Option(help="Base resolution of glimpses in pixels.")] = None,
    grid: Annotated[str | None, typer.Option(help="Grid of cells: 5, or ROWSxCOLUMNS.")] = None,
    cell: Annotated[float | None, typer.Option(help="Side of a cell as a fraction of its region's.")] = None,
    in_chans: Annotated[int | None, typer.Option(help="Number of input channels.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tell a model's parameters, its cost per number of locations, and how its location map was chosen.

    Examples: `foveate info tnet_fmow --image 896 --locations 2,1`, or

    `foveate info tnet --backbone resnet50 --base 256 --grid 4x6 --cell 0.3`
    """
    from foveate.complexity import describe
    from foveate.creation import open_model

    given = {
        "num_classes": num_classes,
        "backbone": backbone,
        "base": base,
        "grid": _grid(grid) if grid is not None else None,
        "cell": cell,
        "in_chans": in_chans,
    }
    wanted = None if locations is None else _numbers(locations, "locations", separator=",")
    size = _size(image)
    with err.status(f"looking into {model}"):
        made = open_model(model, **{name: value for name, value in given.items() if value is not None})
        description = describe(made, size, wanted)
    if as_json:
        _print_json(description)
    else:
        tables.print_description(description)


@app.command()
def convert(
    source: Annotated[
        Path,
        typer.Argument(
            help="Checkpoint prefix, e.g. runs/latest/ckpt-290400, or its folder; or a backbone's .pth file."
        ),
    ],
    model: Annotated[str, typer.Option(help="The published model that it is: tnet_fmow, ...; or the timm backbone.")],
    output: Annotated[Path, typer.Option(help="Folder for the model, or .safetensors file for a backbone.")],
    num_classes: Annotated[int | None, typer.Option(help="Number of classes of a published model.")] = None,
    class_names: Annotated[
        Path | None, typer.Option(help="Text file with a name a line, or the folder of CUB or NABirds.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace what is there already.")] = False,
    as_json: AsJson = False,
) -> None:
    """Convert a published TensorFlow checkpoint, or a backbone's weights of others, to safetensors.

    TensorFlow is not needed; every checksum is verified.

    Examples: `foveate convert ckpt-290400 --model tnet_fmow --num-classes 62 --output models/fmow`, or

    `foveate convert efficientnet-lite0.pth --model tf_efficientnet_lite0 --output lite0.safetensors`
    """
    from foveate import from_tensorflow, list_models, save
    from foveate.backbone_files import convert_backbone
    from foveate.backbones import is_backbone
    from foveate.checkpoints import CONFIG
    from foveate.class_orders import read_class_names
    from foveate.complexity import count_parameters

    if ((output / CONFIG).exists() or output.is_file()) and not overwrite:
        raise ValueError(f"output must not be there yet, got {output}; give --overwrite to replace it")
    if model not in list_models() and is_backbone(model):
        with err.status(f"converting {source}"):
            total = convert_backbone(source, model, output)
        if as_json:
            print(json.dumps({"output": str(output), "parameters": total}))
        else:
            print(f"{total:,} values of {model} converted -> {output}; give it to `foveate train --init`")
        return
    if num_classes is None:
        raise ValueError("--num-classes must be given for a published model, got none")
    names = read_class_names(class_names) if class_names else None
    with err.status(f"converting {source}"):
        converted = from_tensorflow(source, model, num_classes=num_classes, class_names=names)
        save(converted, output)
    total = count_parameters(converted).total
    if as_json:
        print(json.dumps({"output": str(output), "parameters": total, "class_order": converted.config.class_order}))
        return
    print(f"{total:,} values of {model} converted, checksums right -> {output}")
    if converted.config.class_order:
        kept = "names kept" if converted.config.class_names else "give --class-names to keep the names"
        print(f"class order: {converted.config.class_order} ({kept})")


@app.command()
def bench(
    model: Annotated[str, typer.Argument(help="A TNet by name, or a saved model's folder.")] = "tnet_fmow",
    at: Annotated[list[str] | None, typer.Option(help="IMAGE:LOCATIONS, e.g. 896:2,1. Repeat for several.")] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Whole-image model to compare with; its own backbone if left out.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Images in a batch.", min=1)] = 16,
    repeats: Annotated[int, typer.Option(help="Timed repetitions; the median is reported.", min=1)] = 5,
    as_json: AsJson = False,
) -> None:
    """Measure a TNet, the whole-image baseline and the limit (the bare backbone on the same glimpses).

    All are timed in turn in one run; the peak memory of each is that of a process of its own.

    Example: `foveate bench tnet_fmow --at 448:2 --at 896:2,1 --batch 16`
    """
    from foveate import benchmark

    settings = [_setting(text) for text in at] if at else benchmark.usual_settings(model)
    total = benchmark.steps(settings, repeats)
    with _progress("starting", total) as advance:
        result = benchmark.run(
            model,
            baseline,
            settings,
            batch=batch,
            repeats=repeats,
            advance=advance,
        )
    if as_json:
        _print_json(result)
    else:
        tables.print_benchmark(result)


@app.command()
def train(
    output: Annotated[Path, typer.Option(help="Folder of the run: recipe, log, states and the best model.")],
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with a folder for each class, a CSV or Parquet manifest, or a published data set."),
    ] = None,
    recipe: Annotated[str, typer.Option(help="A name that `foveate recipes` lists, or a .toml file.")] = "default",
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change a value: optimizer.lr=3e-4. Repeat for several.")
    ] = None,
    init: Annotated[
        Path | None, typer.Option(help="Start from a saved model's folder, or from weights in a .safetensors file.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on exactly where a killed run was saved last.")
    ] = False,
    minutes: Annotated[float | None, typer.Option(help="Train for so long instead of the recipe's epochs.")] = None,
    check: Annotated[bool, typer.Option(help="Look at all files first for those that cannot be read.")] = True,
    accelerator: Annotated[str, typer.Option(help="Lightning's: auto, cpu, gpu, ...")] = "auto",
    devices: Annotated[int, typer.Option(help="Processes, each on a device of its own, on this machine.")] = 1,
    num_nodes: Annotated[int, typer.Option(help="Machines that train together.")] = 1,
    strategy: Annotated[str, typer.Option(help="Lightning's: auto, ddp, fsdp, ...")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Train a model from class labels alone.

    Examples: `foveate train --data photos/ --output runs/photos`, or

    `foveate train --recipe fmow-stage2 --data fmow/ --init stage1/model --output stage2 --set schedule.batch=32`

    `foveate train --output runs/photos --resume` goes on with a run that was killed.
    """
    from foveate import runs
    from foveate.fitting import Machine
    from foveate.recipes import read_recipe

    machine = Machine(accelerator=accelerator, devices=devices, num_nodes=num_nodes, strategy=strategy)
    if resume:
        if data or init or change or minutes:
            raise ValueError("--resume must come without --data, --init, --set and --minutes: the run has its own")
        with _training_progress() as (watch, _):
            outcome = runs.resume(output, machine=machine, watch=watch)
    else:
        bound = [f"schedule.minutes={minutes}"] if minutes is not None else []
        read = read_recipe(recipe, [*(change or ()), *bound])
        with _training_progress() as (watch, checking):
            outcome = runs.train(
                read, data, output, init=init, machine=machine, watch=watch, checking=checking if check else None
            )
    if as_json:
        _print_json(outcome)
    else:
        tables.print_outcome(outcome)


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="Show one of them whole.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the recipes that `foveate train` knows: what they train, what it costs, and what to expect.

    Example: `foveate recipes fmow-stage2`
    """
    from foveate.recipes import HOME, list_recipes, read_recipe

    if name is not None:
        shown = read_recipe(name)
        if as_json:
            _print_json(shown)
        else:
            path = HOME / f"{name}.toml"
            print((path if path.is_file() else Path(name)).read_text(encoding="utf-8"), end="")
        return
    known = [read_recipe(each) for each in list_recipes()]
    if as_json:
        print(json.dumps([{"name": each.name} | dataclasses.asdict(each.about) for each in known], indent=2))
    else:
        tables.print_recipes(known)


@data_app.command()
def elpv(
    output: Annotated[Path, typer.Argument(help="A new folder for cells, modules and their manifest.")],
    cells: Annotated[
        Path | None, typer.Option(help="Folder of elpv-dataset's labels.csv; the installed package if left out.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split and of the modules.")] = 0,
) -> None:
    """Put solar modules together from the real cells of the PyPI package elpv-dataset (not for commercial use).

    Example: `pip install elpv-dataset && foveate data elpv solar/`
    """
    from foveate.data.elpv import COUNTS, build_modules

    print("The cells of elpv-dataset are under CC BY-NC-SA 4.0: not for commercial use.", file=sys.stderr)
    with _progress("reading cells", sum(COUNTS.values())) as advance:
        build_modules(cells, output, seed=seed, advance=advance)
    print(f"{sum(COUNTS.values())} modules -> {output}; README.txt tells the licence, manifest.csv the labels")


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Folder for the runs and pictures.")] = Path("demo"),
    minutes: Annotated[
        float | None, typer.Option(help="Training time of each of the three models; 1.6 if left out.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the scenes and of training.")] = 0,
    garments: Annotated[
        Path | None, typer.Option(help="Folder with the whole Fashion-MNIST; the package brings a part of it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what hard attention is for: find and name a garment in large scenes, learned from labels alone.

    Trains a TNet, its backbone on the whole scene at low resolution and at full resolution, each for the same time.

    Example: `foveate demo --output demo`
    """
    from foveate.demonstration import demonstrate

    with _training_progress() as (watch, checking):
        shown = demonstrate(
            output,
            minutes=minutes,
            seed=seed,
            garments=garments,
            watching=lambda name: lambda learner, doing: watch(learner, f"{doing} {name}"),
            advance=checking,
        )
    if as_json:
        _print_json(shown)
    else:
        tables.print_demonstration(shown)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"foveate {__version__}")
        raise typer.Exit


def main() -> None:
    """Runs the command line: exit code 2 for a user's mistake, 1 for a failure, each told in one line."""
    try:
        app()
    except (ValueError, FileNotFoundError, FileExistsError, NotADirectoryError, PermissionError) as error:
        _fail(" ".join(str(error).split()), 2)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except Exception as error:
        if os.environ.get("FOVEATE_DEBUG"):
            raise
        first = (str(error).splitlines() or [""])[0]
        _fail(f"{type(error).__name__}: {first} (FOVEATE_DEBUG=1 shows where)", 1)


def _fail(message: str, code: int) -> None:
    print(f"foveate: {message}", file=sys.stderr)
    sys.exit(code)


@contextmanager
def _progress(first: str, total: int) -> Iterator[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(first, total=total)
        started = False

        def advance(what: str) -> None:
            nonlocal started
            progress.update(task, description=what, advance=1 if started else 0)
            started = True

        yield advance


@contextmanager
def _training_progress() -> Iterator[Any]:
    """A bar for training, and before it one for looking at files."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[told]}"),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("preparing", total=None, told="")

        def checking(done: int, total: int) -> None:
            progress.update(task, description="looking at images", told="", completed=done, total=total)

        def watch(learner: Any, doing: str) -> None:
            progress.update(task, description=doing, completed=learner.progress, total=1, told=learner.told)

        yield watch, checking


def _numbers(text: str, name: str, *, separator: str = "x") -> tuple[int, ...]:
    """'5x5' or '2,1' as whole numbers; nothing at all for an empty text."""
    try:
        return tuple(int(part) for part in text.split(separator)) if text.strip() else ()
    except ValueError:
        raise ValueError(f"{name} must be whole numbers joined by '{separator}', got {text!r}") from None


def _grid(text: str) -> int | tuple[int, ...]:
    counts = _numbers(text, "grid")
    if len(counts) not in (1, 2):
        raise ValueError(f"grid must be a number of cells a side or ROWSxCOLUMNS, got {text!r}")
    return counts[0] if len(counts) == 1 else counts


def _size(text: str) -> tuple[int, int]:
    sides = _numbers(text, "image")
    if len(sides) not in (1, 2) or min(sides) < 1:
        raise ValueError(f"image must be a side in pixels or WIDTHxHEIGHT, got {text!r}")
    return sides[0], sides[-1]


def _setting(text: str) -> Any:
    from foveate.benchmark import Setting

    image, colon, locations = text.partition(":")
    if not colon or not image.isdigit():
        raise ValueError(f"--at must be IMAGE:LOCATIONS such as 896:2,1, got {text!r}")
    return Setting(image=int(image), locations=_numbers(locations, "locations", separator=","))


def _print_json(record: Any) -> None:
    print(json.dumps(dataclasses.asdict(record), indent=2, default=str))


if __name__ == "__main__":
    main()
