"""What part of its input each layer of a convolutional network sees, found by watching one pass through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


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
    """The fields of a map along x and y, and which of the tensor's dimensions these are."""

    x: Field
    y: Field
    dims: tuple[int, int] = (3, 2)


@dataclass(frozen=True, slots=True)
class LayerField:
    """A layer whose output is a map of ``channels`` x ``height`` x ``width``, and the map's fields."""

    layer: str
    channels: int
    height: int
    width: int
    field: MapField


def receptive_fields(network: nn.Module, example: Tensor) -> list[LayerField]:
    """Every layer of ``network`` with a map as output, in the order of execution.

    A layer's global context (squeeze-excitation, attention over pooled vectors) is not counted, as is usual.
    Layers with the same field are named by the outermost module that ends with them.
    """
    found: dict[tuple[MapField, int, int], LayerField] = {}

    def record(name: str, output: object) -> None:
        field = _field_of(output)
        if isinstance(output, Tensor) and field and field.dims == (3, 2):
            layer = LayerField(name, *output.shape[1:4], field)
            known = found.get(key := (field, *output.shape[2:4]))
            if known is None or name.count(".") <= known.layer.count("."):
                found[key] = layer

    with _evaluating(network), _watching(network, record), torch.no_grad(), _Tracer():
        # A view, so that the mark does not stay on the caller's tensor.
        start = example.view_as(example)
        _mark(start, MapField(Field(0, 1, 1), Field(0, 1, 1)))
        network(start)
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
        if name
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _field_of(value: object) -> MapField | None:
    return getattr(value, "_receptive_field", None) if isinstance(value, Tensor) else None


def _mark(value: Tensor, field: MapField | None) -> None:
    value._receptive_field = field  # type: ignore[attr-defined]


class _Tracer(TorchFunctionMode):
    """Carries the fields along with the tensors, through every function that is called on them."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        fields = [(value, field) for value in _tensors(args) if (field := _field_of(value))]
        rule = _RULES.get(getattr(func, "__name__", ""), _keep)
        # Worked out before the call, which may change its input in place.
        carry = rule(fields, args, kwargs) if fields else None
        output = func(*args, **kwargs)
        for value in _tensors((output,)):
            if carry is not None:
                _mark(value, carry(value))
        return output


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
            if output.ndim != 4 or any(output.shape[dim] != shape[dim] for dim in field.dims):
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
    if value.ndim != 4 or sorted(dim % 4 for dim in order) != [0, 1, 2, 3]:
        return lambda output: None
    dims = tuple([dim % 4 for dim in order].index(dim) for dim in field.dims)
    return lambda output: replace(field, dims=(dims[0], dims[1]))


def _transpose(fields: _Fields, args: Any, kwargs: Any) -> _Carry:
    order = list(range(4))
    first, second = (dim % 4 for dim in args[1:3])
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
    return lambda output: after if output.ndim == 4 and field.dims == (3, 2) else None


def _pad(fields: _Fields, args: Any, kwargs: Any) -> _Carry:
    margins = kwargs.get("pad", args[1] if len(args) > 1 else ())
    (value, field) = fields[0]
    if value.ndim != 4 or field.dims != (3, 2) or len(margins) < 4:
        return lambda output: None
    padded = MapField(field.x.window(1, 1, margins[0]), field.y.window(1, 1, margins[2]))
    return lambda output: padded


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
