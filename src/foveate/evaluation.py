"""How often a model is right, where it looked and what that took, for each number of locations."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc

from foveate.backbones import pass_size
from foveate.complexity import count_flops
from foveate.data.batches import Prepare
from foveate.data.examples import Example, LabelledData
from foveate.models import Model, TNet
from foveate.sources import ImageSource, TensorImage, as_source
from foveate.traversal import Prediction, glimpses_per_level


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """A model at one setting of its dial, and how images are prepared for it."""

    name: str
    model: Model
    prepare: Prepare
    locations: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """What was found of a contender.

    ``auc`` is for two classes. ``attended`` is in how many of the images with known objects one of these lies wholly
    in an opened region. ``flops`` and ``milliseconds`` are of one image; these are the median of all batches.
    """

    name: str
    locations: tuple[int, ...]
    glimpses: int
    flops: int
    accuracy: float
    auc: float | None
    attended: float | None
    milliseconds: float


@dataclass(slots=True)
class _Tally:
    size: tuple[int, int] = (0, 0)  # of the images as the model is given them
    probabilities: list[Tensor] = field(default_factory=list)
    attended: list[bool] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def evaluate(
    contenders: Sequence[Contender],
    data: LabelledData,
    *,
    batch: int = 16,
    advance: Callable[[int, int], object] = lambda _done, _total: None,
) -> list[Score]:
    """All contenders on all images of ``data``. They take turns batch by batch, so that their times can be compared.

    A model of whole images is run in passes as small as is fastest. The first batch's time does not count.
    """
    tallies = [_Tally() for _ in contenders]
    labels: list[int] = []
    for start in range(0, len(data), batch):
        examples = [data[index] for index in range(start, min(start + batch, len(data)))]
        labels += [example.label for example in examples]
        for contender, tally in zip(contenders, tallies, strict=True):
            _run(contender, examples, tally)
        advance(len(labels), len(data))
    return [_score(*pair, torch.tensor(labels)) for pair in zip(contenders, tallies, strict=True)]


@torch.inference_mode()
def _run(contender: Contender, examples: Sequence[Example], tally: _Tally) -> None:
    never = torch.Generator()
    model = contender.model.eval()
    sources = [as_source(contender.prepare(example, never)) for example in examples]
    tally.size = sources[0].size
    started = time.perf_counter()
    predictions = _predict(model, sources, contender.locations)
    tally.seconds.append((time.perf_counter() - started) / len(examples))
    tally.probabilities += [prediction.logits.float().softmax(1) for prediction in predictions]
    if isinstance(model, TNet):
        (prediction,) = predictions
        for row, (example, source) in enumerate(zip(examples, sources, strict=True)):
            if len(example.boxes):
                tally.attended.append(_saw(prediction, row, _moved(example, source.size)))


def _predict(model: Model, sources: Sequence[ImageSource], locations: Sequence[int]) -> list[Prediction]:
    if isinstance(model, TNet):
        return [model(sources, locations=locations)]
    images = torch.stack([source.pixels for source in sources if isinstance(source, TensorImage)])
    return [model(part) for part in images.split(pass_size(images))]


def _moved(example: Example, size: tuple[int, int]) -> Tensor:
    """The example's boxes in the image as it was prepared, which may be another size."""
    before = as_source(example.image).size
    scale = torch.tensor([size[0] / before[0], size[1] / before[1]] * 2, dtype=torch.float64)
    return example.boxes * scale


def _saw(prediction: Prediction, row: int, boxes: Tensor) -> bool:
    """Whether one of the objects lies wholly in one of the opened regions."""
    opened = [box for level in prediction.walk.levels[1:] for box in level.boxes[row].tolist()]
    return any(_inside(thing, box) for thing in boxes.tolist() for box in opened)


def _inside(thing: Sequence[float], box: Sequence[float]) -> bool:
    right, bottom = thing[0] + thing[2], thing[1] + thing[3]
    return box[0] <= thing[0] and box[1] <= thing[1] and right <= box[0] + box[2] and bottom <= box[1] + box[3]


def _score(contender: Contender, tally: _Tally, labels: Tensor) -> Score:
    probabilities = torch.cat(tally.probabilities)
    binary = probabilities.shape[1] == 2 and len(labels.unique()) == 2
    return Score(
        name=contender.name,
        locations=contender.locations,
        glimpses=sum(glimpses_per_level(contender.locations)),
        flops=count_flops(contender.model, tally.size, contender.locations).flops,
        accuracy=float((probabilities.argmax(1) == labels).float().mean()),
        auc=float(binary_auroc(probabilities[:, 1], labels)) if binary else None,
        attended=sum(tally.attended) / len(tally.attended) if tally.attended and contender.locations else None,
        milliseconds=1000 * statistics.median(tally.seconds[1:] or tally.seconds),
    )
