"""What part of its input each layer of a convolutional network sees, found by watching one pass through it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

CHANNELS_FIRST = (-1, -2)


@dataclass(frozen=True, slots=True)
class Field:
    """Receptive fields along one axis: pixel i of a map sees input [start + i * stride, ... + size)."""

    start: float
    stride: float
    size: float

    def centre(self, index: int) -> float:
        """Where the field of pixel ``index`` has its middle, in input pixels."""
        return self.start + index * self.stride + self.size / 2

    def window(self, kernel: int, stride: int, padding: int, dilation: int = 1) -> Field:
        """The fields after a convolution or a pooling."""
        return Field(
            self.start - padding * self.stride,
            self.stride * stride,
            self.size + (kernel - 1) * dilation * self.stride,
        )

    def join(self, other: Field) -> Field:
        """The fields of a sum of two maps: each pixel sees what either saw."""
        start = min(self.start, other.start)
        return Field(start, self.stride, max(self.start + self.size, other.start + other.size) - start)


@dataclass(frozen=True, slots=True)
class MapField:
    """The fields of a map along x and y, and which of the tensor's dimensions these are, from behind."""

    x: Field
    y: Field
    dims: tuple[int, int] = CHANNELS_FIRST


@dataclass(frozen=True, slots=True)
class LayerField:
    """A layer whose output is a map of ``channels`` x ``height`` x ``width``, and the map's fields."""

    layer: str
    channels: int
    height: int
    width: int
    field: MapField


@dataclass(slots=True)
class _Trace:
    """A tensor's fields, and what became of it: the end of a branch is merely joined with other maps."""

    field: MapField
    used: bool = False
    passed_to: list[_Trace] = dataclasses.field(default_factory=list)

    def carried_on(self) -> bool:
        """Whether another layer was computed from it before it was joined with others."""
        return self.used or any(trace.carried_on() for trace in self.passed_to)


def receptive_fields(network: nn.Module, example: Tensor) -> list[LayerField]:
    """Every layer of ``network`` with a map as output, in the order of execution.

    A layer's global context (squeeze-excitation, attention over pooled vectors) is not counted, as is usual.
    Left out are branches, whose output is only one part of a sum. Layers with the same field are named by the
    outermost module that ends with them.
    """
    seen: list[tuple[LayerField, _Trace]] = []

    def record(name: str, output: object) -> None:
        trace = _trace_of(output)
        if isinstance(output, Tensor) and trace and trace.field.dims == CHANNELS_FIRST and output.ndim == 4:
            seen.append((LayerField(name, output.shape[1], output.shape[2], output.shape[3], trace.field), trace))

    with _evaluating(network), _watching(network, record), torch.no_grad(), _Tracer():
        # A view, so that the mark does not stay on the caller's tensor.
        start = example.view_as(example)
        _mark(start, MapField(Field(0, 1, 1), Field(0, 1, 1)))
        network(start)
    found: dict[tuple[MapField, int, int], LayerField] = {}
    calls = Counter(layer.layer for layer, _ in seen)  # a module that is called twice has no one output
    for layer in (layer for layer, trace in seen if trace.carried_on() and calls[layer.layer] == 1):
        known = found.get(key := (layer.field, layer.height, layer.width))
        if known is None or layer.layer.count(".") <= known.layer.count("."):
            found[key] = layer
    return list(found.values())


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)


@contextmanager
def _watching(network: nn.Module, record: Callable[[str, object], None]) -> Iterator[None]:
    handles = [
        module.register_forward_hook(lambda _module, _args, output, name=name: record(name, output))
        for name, module in network.named_modules()
        if name and not isinstance(module, nn.Identity)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _trace_of(value: object) -> _Trace | None:
    return getattr(value, "_receptive_field", None) if isinstance(value, Tensor) else None


def _mark(value: Tensor, field: MapField | None) -> None:
    value._receptive_field = field and _Trace(field)  # type: ignore[attr-defined]


class _Tracer(TorchFunctionMode):
    """Carries the fields along with the tensors, through every function that is called on them."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        traced = [(value, trace) for value in _tensors(args) if (trace := _trace_of(value))]
        rule = _RULES.get(getattr(func, "__name__", ""), _keep)
        # Worked out before the call, which may change its input in place.
        carry = rule([(value, trace.field) for value, trace in traced], args, kwargs) if traced else None
        output = func(*args, **kwargs)
        produced = list(_tensors((output,)))
        if carry is not None:
            for value in produced:
                _mark(value, carry(value))
            _follow(traced, produced, changes=rule is not _keep)
        return output


def _follow(traced: list[tuple[Tensor, _Trace]], produced: list[Tensor], *, changes: bool) -> None:
    """Notes what became of each input: used for something new, passed on, or (nothing noted) merely joined."""
    sizes = [value.shape[-2:] for value, _ in traced]
    after = [trace for value in produced if (trace := _trace_of(value))]
    for (_, trace), size in zip(traced, sizes, strict=True):
        if changes or (produced and not after):
            trace.used = True
        elif sizes.count(size) == 1:
            # In place, input and output are one tensor, but its traces are two.
            trace.passed_to += [next_ for next_ in after if next_ is not trace]


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


_Fields = list[tuple[Tensor, MapField]]
_Carry = Callable[[Tensor], MapField | None]


def _keep(fields: _Fields, _args: Any, _kwargs: Any) -> _Carry:
    """Pixel by pixel: the output sees what those inputs see that have its height and width."""
    shapes = [(tuple(value.shape), field) for value, field in fields]

    def carry(output: Tensor) -> MapField | None:
        joined: MapField | None = None
        for shape, field in shapes:
            if output.ndim < 4 or any(output.shape[dim] != shape[dim] for dim in field.dims):
                continue
            if joined is None:
                joined = field
            elif joined.dims == field.dims and joined.x.stride == field.x.stride:
                joined = replace(joined, x=joined.x.join(field.x), y=joined.y.join(field.y))
        return joined

    return carry


def _permute(fields: _Fields, args: Any, _kwargs: Any) -> _Carry:
    (value, field), order = fields[0], args[1:]
    order = order[0] if order and isinstance(order[0], (list, tuple)) else order
    places = [dim % value.ndim for dim in order]
    x, y = (places.index(dim % value.ndim) - value.ndim for dim in field.dims)
    return lambda _output: replace(field, dims=(x, y))


def _transpose(fields: _Fields, args: Any, kwargs: Any) -> _Carry:
    order = list(range(args[0].ndim))
    first, second = (dim % args[0].ndim for dim in args[1:3])
    order[first], order[second] = order[second], order[first]
    return _permute(fields, (args[0], order), kwargs)


def _convolve(fields: _Fields, args: Any, kwargs: Any) -> _Carry:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = dict(zip(names, args, strict=False)) | kwargs
    kernel = tuple(given["weight"].shape[2:])
    dilation = given.get("dilation", 1)
    padding = given.get("padding", 0)
    if padding == "same":
        padding = tuple((k - 1) * d // 2 for k, d in zip(kernel, _pair(dilation), strict=True))
    return _window(fields, kernel, given.get("stride", 1), 0 if padding == "valid" else padding, dilation)


def _pool(fields: _Fields, args: Any, kwargs: Any) -> _Carry:
    given = dict(zip(("input", "kernel_size", "stride", "padding"), args, strict=False)) | kwargs
    kernel = given["kernel_size"]
    return _window(fields, kernel, given.get("stride") or kernel, given.get("padding", 0), 1)


def _window(fields: _Fields, kernel: Any, stride: Any, padding: Any, dilation: Any) -> _Carry:
    field = fields[0][1]
    (ky, kx), (sy, sx), (py, px), (dy, dx) = map(_pair, (kernel, stride, padding, dilation))
    after = MapField(field.x.window(kx, sx, px, dx), field.y.window(ky, sy, py, dy))
    return lambda _output: after if field.dims == CHANNELS_FIRST else None


def _pad(fields: _Fields, args: Any, kwargs: Any) -> _Carry:
    margins = kwargs.get("pad", args[1] if len(args) > 1 else ())
    field = fields[0][1]
    if field.dims != CHANNELS_FIRST or len(margins) < 4:
        return lambda _output: None
    padded = MapField(field.x.window(1, 1, margins[0]), field.y.window(1, 1, margins[2]))
    return lambda _output: padded


def _pair(value: Any) -> tuple[int, int]:
    return (value[0], value[-1]) if isinstance(value, (list, tuple)) else (value, value)


_RULES: dict[str, Callable[[_Fields, Any, Any], _Carry]] = {
    "conv2d": _convolve,
    "pad": _pad,
    "permute": _permute,
    "transpose": _transpose,
    F.max_pool2d.__name__: _pool,
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
}
