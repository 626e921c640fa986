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
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

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
    prefix: Annotated[Path, typer.Argument(help="Checkpoint prefix, e.g. runs/latest/ckpt-290400, or its folder.")],
    model: Annotated[str, typer.Option(help="Which published model it is: tnet_fmow, tnet_b0, ...")],
    num_classes: Annotated[int, typer.Option(help="Number of classes.")],
    output: Annotated[Path, typer.Option(help="Folder to write config.json and model.safetensors to.")],
    class_names: Annotated[
        Path | None, typer.Option(help="Text file with a name a line, or the folder of CUB or NABirds.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace a model that is in the folder already.")] = False,
    as_json: AsJson = False,
) -> None:
    """Convert a published TensorFlow checkpoint; every checksum is verified, and TensorFlow is not needed.

    Example: `foveate convert ckpt-290400 --model tnet_fmow --num-classes 62 --output models/fmow`
    """
    from foveate import from_tensorflow, save
    from foveate.checkpoints import CONFIG
    from foveate.class_orders import read_class_names
    from foveate.complexity import count_parameters

    if (output / CONFIG).exists() and not overwrite:
        raise ValueError(f"output must not hold a model yet, got {output}; give --overwrite to replace it")
    names = read_class_names(class_names) if class_names else None
    with err.status(f"converting {prefix}"):
        converted = from_tensorflow(prefix, model, num_classes=num_classes, class_names=names)
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
def demo(
    output: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("demo"),
    image: Annotated[Path | None, typer.Option(help="Another image to walk over.")] = None,
    locations: Annotated[str, typer.Option(help="Cells to open per region of each level.")] = "3,2",
    seed: Annotated[int, typer.Option(help="Seed of the random weights.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show how a walk goes: a TNet with random weights over a satellite picture.

    Example: `foveate demo --output demo`
    """
    from foveate.demonstration import demonstrate

    fanout = _numbers(locations, "locations", separator=",")
    with err.status("walking"):
        shown = demonstrate(output, image=image, locations=fanout, seed=seed)
    if as_json:
        _print_json(shown)
        return
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
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task(first, total=total)
        started = False

        def advance(what: str) -> None:
            nonlocal started
            progress.update(task, description=what, advance=1 if started else 0)
            started = True

        yield advance


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
