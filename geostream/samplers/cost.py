"""What a block costs to keep: the bytes of the decoded tiles that its chips need, of all datasets together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from geostream.errors import GeostreamError
from geostream.plan import MergeCosts, plan_reads, tables_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from geostream.plan import Job, Request
    from geostream.samplers.blocks import Blocks
    from geostream.samplers.regions import Region
    from geostream.samplers.tilegrid import TileGrid

__all__ = ["block_bytes"]

_LOOKED_AT = 4
"""Blocks that stand for all."""


def block_bytes(dataset: Any, regions: Sequence[Region], grids: Sequence[TileGrid], blocks: Blocks) -> int:
    """Bytes of the decoded tiles under a block, masks and further bands included: the most of a few blocks.

    Planned from headers, as a read would be; nothing is fetched. Where headers are not known, an estimate.
    """
    chosen = {len(blocks) * (2 * i + 1) // (2 * _LOOKED_AT) for i in range(_LOOKED_AT)}
    return max(_bytes(dataset, regions, grids, blocks, number) for number in sorted(chosen))


def _bytes(dataset: Any, regions: Sequence[Region], grids: Sequence[TileGrid], blocks: Blocks, number: int) -> int:
    region = int(blocks.region[number])
    height, width = int(blocks.height[number]), int(blocks.width[number])
    estimate = height * width * grids[region].depth
    requests = _requests(
        dataset, regions[region].place(int(blocks.row[number]), int(blocks.col[number]), height, width)
    )
    headers = {request.source: request.source.header for request in requests}
    known = {source: header for source, header in headers.items() if header is not None}
    if not requests or len(known) < len(headers):
        return max(1, estimate)
    plan = plan_reads(requests, known, costs=MergeCosts(0, 0))
    tiles = {
        key: sizes[key[1]]
        for job, keys in zip(plan.jobs, plan.needs, strict=True)
        if not isinstance(job, Exception)
        for sizes in [_tile_bytes(job)]
        for key in keys
    }
    return max(1, sum(tiles.values()) or estimate)


def _requests(dataset: Any, place: Any) -> list[Request]:
    ask = getattr(dataset, "requests", None)
    try:
        return list(ask(place)) if ask is not None else []
    except GeostreamError:
        return []


def _tile_bytes(job: Job) -> dict[int, int]:
    """Bytes of a decoded tile of each image that the job reads."""
    return {table.ifd: table.codec.nbytes for table, _ in tables_of(job)}
