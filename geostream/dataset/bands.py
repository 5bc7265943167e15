"""Which files and which of their bands make up a sample's channels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from geostream.errors import ConfigError, redact
from geostream.index import band_counts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from geostream.dataset.filenames import FilenamePattern
    from geostream.index import Scene

__all__ = ["BandFiles", "Part", "band_indexes"]

Part = tuple[str, tuple[int, ...] | None]
"""A file and its 1-based bands, in order; None for all of them."""


def band_indexes(name: str, bands: Sequence[str | int] | None, all_bands: Sequence[str]) -> tuple[int, ...] | None:
    """1-based positions of ``bands`` in one file that holds ``all_bands``; None for whatever the file holds.

    Args:
        name: the dataset's class, for messages.
        bands: names out of ``all_bands``, or, where the class names none, 1-based numbers.
        all_bands: names of the file's bands, in order.

    Raises:
        ConfigError: a band is unknown.
    """
    if all_bands:
        known = list(all_bands)
        _check_known(name, bands or known, known)
        return tuple(known.index(str(band)) + 1 for band in bands or known)
    if not bands:
        return None
    numbers = tuple(band for band in bands if isinstance(band, int) and band >= 1)
    if len(numbers) != len(bands):
        raise ConfigError(
            f"unknown bands {list(bands)}: {name} has no all_bands, so only numbers are known: pass bands=[1, 2, …], "
            "or name the bands in a subclass's all_bands"
        )
    return numbers


def _check_known(name: str, bands: Sequence[str | int], known: Sequence[str]) -> None:
    unknown = [band for band in bands if band not in known]
    if unknown:
        raise ConfigError(f"unknown bands {unknown}: the bands of {name} are {list(known)}")


@dataclass(frozen=True)
class BandFiles:
    """How scenes are spread over files: one file each, or one file for each band."""

    pattern: FilenamePattern
    """Finds the name of a band's file."""
    bands: tuple[str, ...]
    """Bands to read, each from its own file; empty where a scene is one file."""
    indexes: tuple[int, ...] | None
    """1-based bands to read from a scene's one file; None for all."""
    siblings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """For files that are assets of a STAC item, all of its files by the names of its assets: those of bands."""

    @classmethod
    def of_class(
        cls,
        name: str,
        pattern: FilenamePattern,
        bands: Sequence[str | int] | None,
        all_bands: Sequence[str],
        siblings: Mapping[str, Mapping[str, str]],
        *,
        separate: bool,
    ) -> BandFiles:
        """What a dataset class's attributes say.

        Args:
            name: the class, for messages.
            pattern: of its files' names.
            bands: the bands that the user names, if he does.
            all_bands: names of the files' bands.
            siblings: an index's word on which files are one scene, as far as it has one.
            separate: whether each band has its own file.

        Raises:
            ConfigError: bands are unknown, or none are named where each has its own file, or their files are not.
        """
        if isinstance(bands, str):
            raise ConfigError(f"bands={bands!r}: pass a sequence, such as bands=[{bands!r}]")
        if bands is not None and len(bands) == 0:
            raise ConfigError(f"bands={bands!r} names none: leave bands out to read all")
        if not separate:
            return cls(pattern, (), band_indexes(name, bands, all_bands))
        wanted = tuple(map(str, bands or all_bands))
        if not wanted:
            raise ConfigError(f"{name}.separate_files is True: say which bands there are in all_bands, or pass bands=")
        if all_bands:
            _check_known(name, wanted, all_bands)
        if len(wanted) > 1 and not pattern.names_band and not siblings:
            raise ConfigError(
                f"{name}.separate_files is True, but filename_regex has no group 'band' that says where a file's name "
                "holds its band: write (?P<band>…) there"
            )
        return cls(pattern, wanted, None, siblings)

    def parts(self, url: str) -> list[Part]:
        """Files, with bands, that make up the channels of the scene listed as ``url``."""
        if not self.bands:
            return [(url, self.indexes)]
        if url in self.siblings:
            return [(self._asset(url, band), None) for band in self.bands]
        return [(self.pattern.with_band(url, band), None) for band in self.bands]

    def _names(self, url: str) -> list[str]:
        return [name for name, _ in self.parts(url)]

    def _asset(self, url: str, band: str) -> str:
        there = self.siblings[url]
        if band not in there:
            raise ConfigError(
                f"{redact(url)}: its STAC item has no asset {band!r} in the index, only {sorted(there)}: name others "
                "in bands=, or build the index with assets= that hold them",
                url=url,
            )
        return there[band]

    def scenes(self, urls: Sequence[str]) -> list[str]:
        """One file for each scene: of files that differ in their band alone, the first one wanted that was listed."""
        matching = self.pattern.matching(urls)
        if not self.bands:
            return matching
        listed = set(matching)
        chosen: dict[str, str] = {}
        for url in matching:
            names = self._names(url)
            chosen.setdefault(names[0], next((name for name in names if name in listed), url))
        return list(chosen.values())

    def files(self, urls: Sequence[str]) -> list[str]:
        """The files to open, of which some may occur twice: those of scenes and of their bands."""
        if not self.bands:
            return list(urls)
        return [*urls, *(part for url in urls for part, _ in self.parts(url))]

    def check(self, urls: Sequence[str], scenes: Mapping[str, Scene], *, explicit: bool) -> None:
        """Check that every scene has the channels that the others have.

        Args:
            urls: one file for each scene.
            scenes: facts about every file.
            explicit: whether the user named the bands, so that files may have more of them than others.

        Raises:
            ConfigError: two files differ in their number of bands, or one lacks a band that is to be read.
        """
        for files in [urls] if not self.bands else zip(*map(self._names, urls), strict=True):
            counts = band_counts(scenes, files)
            if self.indexes is not None:
                _check_indexes(files, counts, self.indexes)
            if not explicit or self.bands:
                _check_counts(files, counts)


def _check_indexes(urls: Sequence[str], counts: NDArray[np.int64], indexes: tuple[int, ...]) -> None:
    for at in np.flatnonzero(counts < max(indexes)).tolist():
        raise ConfigError(
            f"{redact(urls[at])} has {counts[at]} bands, but bands {list(indexes)} are to be read: correct bands= or "
            "all_bands, or narrow filename_glob",
            url=urls[at],
        )


def _check_counts(urls: Sequence[str], counts: NDArray[np.int64]) -> None:
    for at in np.flatnonzero(counts != counts[0]).tolist():
        raise ConfigError(
            f"the files differ in their number of bands: {redact(urls[0])} has {counts[0]}, {redact(urls[at])} has "
            f"{counts[at]}: narrow filename_glob, or name the bands to read",
            url=urls[at],
        )
