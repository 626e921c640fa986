"""Fixtures that several tests share."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# No test may reach for a hub; the hub's library looks at this when it is imported.
os.environ["HF_HUB_OFFLINE"] = "1"

from tests.official import GOLDEN


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test draws the same numbers, in whatever order tests run."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def no_gradients(request: pytest.FixtureRequest) -> Iterator[None]:
    """Most tests are of inference; those marked ``gradients`` are not."""
    with torch.set_grad_enabled("gradients" in request.keywords):
        yield


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real checkpoint, written by the official trainer's code: its prefix."""
    folder = tmp_path_factory.mktemp("checkpoint")
    with tarfile.open(GOLDEN / "cub_tnet_b0_5loc_checkpoint.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "ckpt-0"
