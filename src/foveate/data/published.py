"""The data sets of the papers, as they are downloaded, with the label orders of the published checkpoints."""

from __future__ import annotations

from foveate.data.birds import cub, nabirds
from foveate.data.dogs import dogs
from foveate.data.fmow import fmow
from foveate.data.imagenet import imagenet

__all__ = ["cub", "dogs", "fmow", "imagenet", "nabirds"]
