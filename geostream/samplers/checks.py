"""Arguments, checked before anything is made of them."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from geostream.errors import ConfigError

__all__ = ["check_choice", "check_count", "check_flag", "check_length", "check_share"]

_MOST_CHIPS = 100_000_000
"""Chips in an epoch that may be asked for: their numbers take some gigabytes."""


def check_count(name: str, value: Any, least: int = 1) -> int:
    """``value`` as an int of at least ``least``.

    Raises:
        ConfigError: it is no whole number (True and False are none), or too small.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise ConfigError(f"{name}={value!r}: pass a whole number, {least} or more")
    return number


def check_flag(name: str, value: Any) -> bool:
    """``value`` as a bool.

    Raises:
        ConfigError: it is neither True nor False.
    """
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{name}={value!r}: pass True or False")
    return bool(value)


def check_length(length: Any, batch_size: int = 1) -> int | None:
    """``length`` as a number of chips that hold a batch; None where it is left out.

    Raises:
        ConfigError: no whole number, less than a batch, or more than memory is for.
    """
    if length is None:
        return None
    chips = check_count("length", length)
    if chips < batch_size:
        raise ConfigError(f"length={length} holds no batch of {batch_size}: it counts chips, as in TorchGeo")
    if chips > _MOST_CHIPS:
        raise ConfigError(
            f"length={length}: an epoch's chips are drawn at once, which would take {chips * 32 / 2**30:.0f} GiB or "
            f"more: pass at most {_MOST_CHIPS}; other chips follow in the next epoch"
        )
    return chips


def check_share(name: str, value: Any) -> float:
    """``value`` as a float between 0 and 1.

    Raises:
        ConfigError: it is none.
    """
    try:
        share = None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        share = None
    if share is None or not 0 <= share <= 1:
        raise ConfigError(f"{name}={value!r}: pass a share between 0 and 1")
    return share


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> Any:
    """``value``, one of ``choices``.

    Raises:
        ConfigError: it is none of them.
    """
    if value not in choices:
        allowed = f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
        raise ConfigError(f"{name}={value!r}: pass {allowed}")
    return value
