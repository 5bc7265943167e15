"""STAC items to things to index: which assets, where they lie, when they were taken, what is said of their pixels."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urljoin

import numpy as np
from affine import Affine

from geostream.errors import ConfigError, redact
from geostream.grid import Grid, parse_crs
from geostream.index.entry import Entry
from geostream.index.scene import Scene

__all__ = ["Assets", "is_stac", "items_of"]

Item = Mapping[str, Any]
"""A STAC item as JSON holds it."""

_RASTER_TYPE = re.compile(
    r"image/(tiff|vnd\.stac\.geotiff|jp2|jpx|x\.geotiff|geotiff)\b|application/geotiff", re.IGNORECASE
)
_RASTER_NAME = re.compile(r"\.(tiff?|gtiff?|cog|jp2|j2k)$", re.IGNORECASE)
_ASIDE = frozenset({"thumbnail", "overview", "metadata", "tiles"})
"""Roles of assets that accompany the data."""
_TYPES = {"cfloat32": "complex64", "cfloat64": "complex128"}
"""STAC's names of pixel types that are not NumPy's."""
_AFFINE = 6


def is_stac(value: Any) -> bool:
    """Whether a value is a STAC item, a collection of them, or a search for them, as JSON or as pystac's objects."""
    if isinstance(value, Mapping):
        return "assets" in value or "features" in value
    return (
        hasattr(value, "items_as_dicts")
        or (hasattr(value, "to_dict") and hasattr(value, "assets"))
        or _is_pystac(value)
    )


def _is_pystac(value: Any) -> bool:
    return type(value).__module__.partition(".")[0].startswith("pystac") and hasattr(value, "to_dict")


def items_of(value: Any) -> list[Item]:
    """The items of an item, an ItemCollection, a search, or several of these.

    Raises:
        ConfigError: there is something else among them.
    """
    if hasattr(value, "items_as_dicts"):  # pystac-client's search, which asks its server only now
        return list(value.items_as_dicts())
    if not isinstance(value, Mapping) and hasattr(value, "to_dict"):
        return items_of(value.to_dict(transform_hrefs=False) if _is_pystac(value) else value.to_dict())
    if isinstance(value, Mapping):
        if "features" in value:
            return [item for feature in value["features"] for item in items_of(feature)]
        if isinstance(value.get("assets"), Mapping) and value.get("type", "Feature") == "Feature":
            return [value]
        kind = value.get("type", "a mapping")
        raise ConfigError(
            f"{kind!r} {value.get('id', '')!r} is no STAC item: pass items, an ItemCollection or an item search; those "
            "of a catalogue or collection are listed by pystac, or found by pystac_client"
        )
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [item for one in value for item in items_of(one)]
    raise ConfigError(f"a {type(value).__name__} is no STAC item: pass items, an ItemCollection or an item search")


@dataclass(frozen=True)
class Assets:
    """Which assets of STAC items are wanted."""

    wanted: tuple[str, ...] = ()
    """Names, or else roles; empty for every GeoTIFF or JPEG 2000 that is neither thumbnail, overview nor metadata."""

    def entries(self, items: Iterable[Item], base: str | None) -> tuple[list[Entry], dict[str, str]]:
        """One thing to index for each asset wanted, of the items that have all of them.

        Args:
            items: where to look.
            base: path or URL of the document they come from, for assets that are named relative to it.

        Returns:
            The things to index; and by their ids what other items lack, in words that name the assets they have.

        Raises:
            ConfigError: an asset's place is told relative to nobody knows what.
        """
        found: list[Entry] = []
        lacking: dict[str, str] = {}
        for item in items:
            names = self._choose(item)
            if isinstance(names, str):
                lacking[str(item.get("id"))] = names
                continue
            found += [_entry(item, name, base) for name in names]
        return found, lacking

    def _choose(self, item: Item) -> list[str] | str:
        """Names of the assets wanted; or what the item lacks, in words."""
        assets: Mapping[str, Mapping[str, Any]] = {name: a for name, a in item["assets"].items() if a}
        chosen: list[str] = []
        missing = []
        for wanted in self.wanted:
            names = (
                [wanted] if wanted in assets else [n for n, a in assets.items() if wanted in _listed(a.get("roles"))]
            )
            chosen += names
            if not names:
                missing.append(wanted)
        if not self.wanted:
            chosen = [name for name, asset in assets.items() if _is_raster(asset)]
        if missing or not chosen:
            what = ", ".join(map(repr, missing)) or "a raster"
            there = ", ".join(
                f"{name} ({', '.join(_listed(a.get('roles'))) or 'no role'})" for name, a in assets.items()
            )
            return f"{item.get('id')!r} has no {what}; its assets are: {there or 'none'}"
        return list(dict.fromkeys(chosen))


def _is_raster(asset: Mapping[str, Any]) -> bool:
    if _ASIDE & set(_listed(asset.get("roles"))):
        return False
    kind = asset.get("type")
    return bool(_RASTER_TYPE.match(kind) if kind else _RASTER_NAME.search(redact(asset.get("href", ""))))


def _entry(item: Item, name: str, base: str | None) -> Entry:
    asset = item["assets"][name]
    properties = item.get("properties") or {}
    url = _absolute(item, asset["href"], base)
    size = asset.get("file:size")
    return Entry(
        url,
        size=int(size) if isinstance(size, int | float) and size == size else None,  # noqa: PLR0124 - not NaN
        modified=_instant(asset.get("updated") or properties.get("updated")),
        times=_times(properties),
        item=str(item["id"]) if item.get("id") is not None else None,
        asset=name,
        described=_described(item, asset, url),
    )


def _absolute(item: Item, href: str, base: str | None) -> str:
    """Where an asset lies.

    Raises:
        ConfigError: its place is told relative to nobody knows what.
    """
    if "://" in href or href.startswith("/"):
        return href
    itself = next((link.get("href") for link in _listed(item.get("links")) if link and link.get("rel") == "self"), None)
    origin = itself if itself and ("://" in itself or itself.startswith("/")) else base
    if origin is None:
        raise ConfigError(
            f"the STAC item {item.get('id')!r} names {href!r} relative to itself, and does not say where it lies: give "
            "it a link 'self', or pass the file that holds it"
        )
    if origin.startswith(("http://", "https://")):
        return urljoin(origin, href)
    protocol, mark, path = origin.rpartition("://")
    return protocol + mark + posixpath.normpath(posixpath.join(posixpath.dirname(path), href))


def _times(properties: Mapping[str, Any]) -> tuple[datetime, datetime] | None:
    start, end = _instant(properties.get("start_datetime")), _instant(properties.get("end_datetime"))
    moment = _instant(properties.get("datetime"))
    if start is not None and end is not None:
        return start, end
    return None if moment is None else (moment, moment)


def _instant(value: Any) -> datetime | None:
    """A time as JSON or a table holds it; UTC."""
    if isinstance(value, str):
        try:
            # Digits beyond microseconds, which some catalogues write, are more than Python reads.
            value = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", value))
        except ValueError:
            return None
    if not isinstance(value, datetime) or value != value:  # noqa: PLR0124 - pandas' NaT is a datetime
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _described(item: Item, asset: Mapping[str, Any], url: str) -> Scene | None:
    """The scene by the extensions ``proj`` and ``raster``; None unless they tell what a dataset asks of headers."""
    properties = item.get("properties") or {}
    own = {key: value for key, value in asset.items() if value is not None}
    shape, transform = (own.get(f"proj:{k}", properties.get(f"proj:{k}")) for k in ("shape", "transform"))
    bands = _bands(own)
    if shape is None or transform is None or not bands:
        return None
    try:
        crs = parse_crs(_crs({**properties, **own}))
        dtypes = {np.dtype(_TYPES.get(band["data_type"], band["data_type"])) for band in bands}
        height, width = (int(side) for side in shape)
        placed = Affine(*(float(number) for number in tuple(transform)[:_AFFINE]))
        nodata = tuple(_number(band.get("nodata")) for band in bands)
    except (KeyError, TypeError, ValueError):
        return None
    resolution = bands[0].get("spatial_resolution")
    if crs is None or len(dtypes) > 1 or ("proj:transform" not in own and not _agree(resolution, placed)):
        return None
    return Scene(url, (), Grid(width, height, placed, crs), len(bands), dtypes.pop(), nodata, None)


def _bands(asset: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What is said of each band's pixels: by the raster extension's first version, or by STAC 1.1."""
    if bands := _listed(asset.get("raster:bands")):
        return bands
    common = {key: asset[key] for key in ("data_type", "nodata") if key in asset}
    bands = _listed(asset.get("bands")) or ([common] if common else [])
    resolution = (
        {"spatial_resolution": asset["raster:spatial_resolution"]} if "raster:spatial_resolution" in asset else {}
    )
    return [{**common, **resolution, **band} for band in bands]


def _agree(resolution: Any, placed: Affine) -> bool:
    """Whether an item's transform can be an asset's, by the pixel size that is said of it."""
    return resolution is None or abs(float(resolution) - abs(placed.a)) <= 1e-6 * abs(placed.a)


def _crs(facts: Mapping[str, Any]) -> Any:
    if facts.get("proj:code"):
        return facts["proj:code"]
    if facts.get("proj:epsg"):
        return int(facts["proj:epsg"])
    return facts.get("proj:wkt2") or facts.get("proj:projjson")


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _listed(value: Any) -> list[Any]:
    """A list as JSON or a table holds it; empty for none."""
    return [] if value is None else list(value)
