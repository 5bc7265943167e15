"""What a raster dataset was asked to do with pixels, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from rasterio.enums import Resampling

from geostream.errors import ConfigError
from geostream.mosaic import POLICIES
from geostream.warp import RESAMPLINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DType", "PixelOptions", "resampling_name"]

DType = torch.dtype | Literal["native"]
"""A dtype to cast to, or the files' own."""

_BY_TIME = ("newest", "oldest")
_ON_ERROR = ("raise", "skip", "fill")


@dataclass(frozen=True)
class PixelOptions:
    """Keywords of `RasterDataset` that concern pixels. None: as the dataset's class says."""

    valid: bool = False
    """Whether samples carry ``mask_valid``."""
    dtype: DType | None = None
    """Pixel type of samples."""
    resampling: str | None = None
    """Kernel for what is not pasted."""
    fill: float | None = None
    """Value of pixels without data; None for the file's nodata value, or 0."""
    mosaic: str = "first"
    """What happens where scenes overlap."""
    on_error: str = "raise"
    """What happens when a scene fails: ``raise``, ``skip`` or ``fill``."""

    def __post_init__(self) -> None:
        if not isinstance(self.valid, bool):
            raise ConfigError(f"valid={self.valid!r}: pass True or False")
        if self.dtype is not None and self.dtype != "native" and not isinstance(self.dtype, torch.dtype):
            raise ConfigError(f"dtype={self.dtype!r}: pass a torch dtype, or 'native' for the files' own")
        if self.fill is not None and not isinstance(self.fill, int | float | np.number):
            raise ConfigError(f"fill={self.fill!r}: pass a number")
        _choose("mosaic", self.mosaic, (*POLICIES, *_BY_TIME))
        _choose("on_error", self.on_error, _ON_ERROR)

    @property
    def policy(self) -> str:
        """The mosaic's policy once scenes are in order."""
        return "first" if self.mosaic in _BY_TIME else self.mosaic


def _choose(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}={value!r} is unknown: choose one of {', '.join(choices)}")


def resampling_name(value: Any) -> str:
    """The kernel that ``value`` names: a string, or rasterio's `Resampling`, in which TorchGeo's classes speak.

    Raises:
        ConfigError: geostream has no such kernel.
    """
    if isinstance(value, int):  # rasterio's enumeration counts as int
        value = Resampling(value).name
    name = str(value)
    _choose("resampling", name, RESAMPLINGS)
    return name
