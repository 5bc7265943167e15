"""LitData's arms: a copy of the scenes cut into chips beforehand, streamed from the same server."""

from __future__ import annotations

import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rasterio
import torch
from torch import Tensor

from geostream.bench.cases import BATCH, CHIP
from geostream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from geostream.bench.jobs import Job

__all__ = ["OPTIONS", "FloatBatches", "batches", "copy_name", "write_copy"]

OPTIONS = {"LITDATA_BATCH_DECODE": "all", "DISABLE_VERSION_CHECK": "1"}
"""Environment of the arms that read: all of a chunk's chips are decoded together, the fastest way there is."""

_CHUNK_BYTES = "64MB"
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}


def copy_name(case: str, arm: str) -> str:
    """Folder of a case's copy, below the data directory."""
    return f"litdata/{case}-{'zstd' if arm.endswith('zstd') else 'raw'}"


def write_copy(
    files: list[list[list[str]]], folder: Path, *, compression: str | None, workers: int
) -> dict[str, float]:
    """Cut scenes into chips side by side, in the files' dtype, and write them as LitData writes its data sets.

    Args:
        files: of each scene, the paths of each of its parts (an image of one file or several, labels of one).
        folder: where the copy goes; what is there is removed.
        compression: None or ``"zstd"``.
        workers: processes that write.

    Returns:
        ``seconds`` it took, reading from local files, and ``bytes`` it has.

    Raises:
        ConfigError: LitData is not installed.
    """
    litdata = _litdata()
    shutil.rmtree(folder, ignore_errors=True)
    draft = folder.with_name(f".{folder.name}")
    shutil.rmtree(draft, ignore_errors=True)
    began = time.perf_counter()
    litdata.optimize(
        fn=partial(_cut, size=CHIP),
        inputs=files,
        output_dir=str(draft),
        chunk_bytes=_CHUNK_BYTES,
        compression=compression,
        num_workers=min(workers, len(files)),
        verbose=False,
    )
    seconds = time.perf_counter() - began
    draft.rename(folder)
    return {"seconds": seconds, "bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())}


def _cut(scene: list[list[str]], size: int) -> Iterator[dict[str, Tensor]]:
    parts: dict[str, Tensor] = {}
    for paths in scene:
        pixels = torch.cat([_read(path) for path in paths])
        is_label = Path(paths[0]).name.startswith("l_")
        parts["mask" if is_label else "image"] = pixels[0] if is_label else pixels
    height, width = next(iter(parts.values())).shape[-2:]
    for row in range(0, height - size + 1, size):
        for column in range(0, width - size + 1, size):
            yield {key: part[..., row : row + size, column : column + size].clone() for key, part in parts.items()}


def _read(path: str) -> Tensor:
    with rasterio.open(path) as dataset:
        return torch.from_numpy(dataset.read())


class FloatBatches:
    """A loader's batches with images as float32 and masks as int64, as the other arms make them."""

    def __init__(self, loader: Iterable[dict[str, Tensor]]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for batch in self._loader:
            yield {key: value.long() if key == "mask" else value.float() for key, value in batch.items()}


def batches(job: Job) -> Iterable[Any]:
    """The arm's loader: shuffled, in this process, into a cache that is empty.

    Raises:
        ConfigError: LitData is not installed.
    """
    os.environ.update(OPTIONS | _CREDENTIALS)
    litdata = _litdata()
    from litdata.streaming import downloader  # noqa: PLC0415 - optional

    # It has no option for servers without TLS, which this one is.
    getattr(downloader, "_OBSTORE_CLIENT_OPTIONS", {})["allow_http"] = "true"
    endpoint, _, key = job.copy.partition("#")
    storage = {
        "endpoint_url": endpoint,
        "aws_access_key_id": "x",
        "aws_secret_access_key": "x",
        "region_name": "us-east-1",
    }
    dataset = litdata.StreamingDataset(key, cache_dir=job.scratch, shuffle=True, seed=job.seed, storage_options=storage)
    return FloatBatches(litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=0))


def _litdata() -> Any:
    try:
        import litdata  # noqa: PLC0415 - optional
    except ImportError as error:
        raise ConfigError("the litdata arms need LitData: pip install 'geostream[bench]'") from error
    return litdata
