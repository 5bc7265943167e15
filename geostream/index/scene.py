"""One raster file, and what its header says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from geostream.header import MaskKind
from geostream.index.packing import PackedHeader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from geostream.grid import Grid
    from geostream.header import RasterHeader

__all__ = ["Scene"]


@dataclass(frozen=True, slots=True)
class Scene:
    """One raster file and what its header says. Plain facts: pickles, needs no file to be open."""

    url: str
    """Path or URL."""
    sidecars: tuple[str, ...]
    """Mask, overview and metadata files that were listed beside it."""
    grid: Grid
    """Full resolution pixel grid, on the earth where control points place the file there."""
    count: int
    """Number of bands."""
    dtype: np.dtype[np.generic]
    """Pixel type, that of the first band."""
    nodata: tuple[float | None, ...]
    """Declared nodata value of each band."""
    stored: RasterHeader | PackedHeader | None
    """The header as read, or as an index keeps it; None where nobody has read it yet."""
    block_shape: tuple[int, int] = (0, 0)
    """(rows, columns) of a tile or strip; (0, 0) where that is not known."""
    all_valid: bool = False
    """Whether every pixel is valid: no nodata value, mask or alpha. False where that is not known, as along the bent
    edges of a raster that control points place."""

    @classmethod
    def from_header(cls, url: str, sidecars: tuple[str, ...], header: RasterHeader) -> Scene:
        """The scene that ``header`` describes."""
        return cls(
            url,
            sidecars,
            header.ground or header.grid,
            header.count,
            np.dtype(header.dtype),
            tuple(header.nodata),
            header,
            header.block_shape,
            header.mask is MaskKind.ALL_VALID and header.ground is None,
        )

    @property
    def header(self) -> RasterHeader | None:
        """The header, which spares later reads the request for it; None where nobody has read it yet."""
        return self.stored.header if isinstance(self.stored, PackedHeader) else self.stored

    @property
    def colormap(self) -> Mapping[int, tuple[int, ...]] | None:
        """Colours (R, G, B, A; 0-255) of a palette raster's values; None also where the header was not read."""
        header = self.header
        return None if header is None else header.colormap

    def declaring(self, nodata: float) -> Scene:
        """This scene as if its file declared ``nodata`` for all bands."""
        stored = None if self.stored is None else self.stored.declaring(nodata)
        return replace(self, nodata=(nodata,) * self.count, stored=stored, all_valid=False)
