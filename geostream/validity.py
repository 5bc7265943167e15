"""Which pixels are valid, by the rules of rasterio's ``dataset_mask``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from geostream.header import MaskKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from geostream.header import RasterHeader

__all__ = ["differs_from_nodata", "validity"]


def validity(
    data: NDArray[Any], bands: Sequence[int], header: RasterHeader, mask: NDArray[Any] | None
) -> NDArray[np.bool_]:
    """Validity of a window of pixels.

    Args:
        data: (C, h, w) pixels as stored.
        bands: 1-based number of each of the C bands.
        header: the raster's header.
        mask: (h, w) pixels of the mask or alpha band, where one decides; then nonzero is valid.

    Returns:
        bool, (C, h, w) where nodata values decide, each band on its own; else (1, h, w) for all bands.
    """
    if mask is not None:
        nonzero: NDArray[np.bool_] = mask[None] != 0
        return nonzero
    if header.mask is MaskKind.NODATA:
        planes = [differs_from_nodata(plane, header.nodata[band - 1]) for plane, band in zip(data, bands, strict=True)]
        return np.stack(planes)
    return np.ones((1, *data.shape[1:]), bool)


def differs_from_nodata(plane: NDArray[Any], nodata: float | None) -> NDArray[np.bool_]:
    """Where a band differs from its nodata value as GDAL compares them.

    GDAL truncates the value to an integer band's type; in float bands values within two float32 epsilons (relative to
    the sum of both, whatever the band's own precision) count as equal; of complex bands only the real part is compared.
    """
    if nodata is None:
        return np.ones(plane.shape, bool)
    if plane.dtype.kind == "c":
        plane = plane.real
    if plane.dtype.kind == "f":
        value = plane.dtype.type(nodata)
        if np.isnan(value):
            present: NDArray[np.bool_] = ~np.isnan(plane)
            return present
        with np.errstate(invalid="ignore", over="ignore"):
            tolerance = plane.dtype.type(np.finfo(np.float32).eps) * np.abs(plane + value) * plane.dtype.type(2)
            equal: NDArray[np.bool_] = (plane == value) | (np.abs(plane - value) < tolerance)
        return ~equal
    limits = np.iinfo(plane.dtype)
    if not np.isfinite(nodata) or not limits.min <= int(nodata) <= limits.max:
        return np.ones(plane.shape, bool)
    different: NDArray[np.bool_] = plane != plane.dtype.type(int(nodata))
    return different
