"""What a size is measured in."""

from __future__ import annotations

import math
from enum import Enum, auto
from numbers import Real
from typing import Any

from geostream.errors import ConfigError
from geostream.grid import pixel_count

__all__ = ["Units", "pixel_size"]


class Units(Enum):
    """What ``size`` and ``stride`` are measured in."""

    PIXELS = auto()
    """Pixels of the dataset's resolution."""
    CRS = auto()
    """Units of the dataset's CRS, rounded to whole pixels of its resolution."""


def pixel_size(value: Any, units: Any, res: tuple[float, float], name: str) -> tuple[int, int]:
    """``value`` as whole pixels (height, width).

    Args:
        value: one number, or (height, width).
        units: a member of `Units`, or of TorchGeo's enumeration of the same names.
        res: pixel size (x, y) in CRS units.
        name: what to call the argument in a message.

    Raises:
        ConfigError: not one or two positive numbers, pixels that are not whole, or unknown units.
    """
    pair = tuple(value) if isinstance(value, tuple | list) else (value, value)
    numbers = [float(v) for v in pair if _is_number(v) and math.isfinite(v) and v > 0]
    if len(pair) != 2 or len(numbers) != 2:  # noqa: PLR2004 - height and width
        raise ConfigError(f"{name}={value!r}: pass one positive number, or (height, width)")
    height, width = numbers
    unit = getattr(units, "name", None)
    if unit == Units.CRS.name:
        return pixel_count(height, res[1]), pixel_count(width, res[0])
    if unit != Units.PIXELS.name:
        raise ConfigError(f"units={units!r}: pass Units.PIXELS or Units.CRS")
    if not (height.is_integer() and width.is_integer()):
        raise ConfigError(f"{name}={value!r} is no whole number of pixels: round it, or pass units=Units.CRS")
    return int(height), int(width)


def _is_number(value: Any) -> bool:
    """Whether it is a number of Python's or NumPy's; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)
