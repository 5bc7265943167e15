"""Datasets whose batches are read in one plan, whatever library their class comes from."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from geostream.dataset.prefetch import Prefetched, is_nothing_left, prefetched, submit
from geostream.errors import GeostreamError
from geostream.reader import plan_many

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from geostream.dataset.collate import Sample
    from geostream.dataset.query import GeoSlice
    from geostream.plan import ReadPlan, Request

__all__ = ["PlannedBatches"]


class PlannedBatches:
    """Reads all that a batch of queries needs at once, and then asks the dataset for one sample after the other."""

    if TYPE_CHECKING:

        def __getitem__(self, query: GeoSlice) -> Sample: ...

    def requests(self, query: GeoSlice) -> list[Request]:  # noqa: ARG002 - for subclasses to answer
        """What ``self[query]`` will ask of the reader: nothing, unless a subclass says so."""
        return []

    def plan(self, queries: Sequence[GeoSlice]) -> ReadPlan:
        """The plan by which a batch is read: ``dataset.plan(queries).explain()`` says what is fetched and why.

        Raises:
            GeostreamError: a query is malformed, or nothing lies there.
        """
        return plan_many([request for query in queries for request in self.requests(query)])

    def prefetch(self, queries: Sequence[GeoSlice]) -> Future[Prefetched]:
        """Start reading all that ``queries`` need, in one plan: each tile is fetched and decoded once.

        A query that cannot be planned is left out; `assemble` raises what is wrong with it.
        """
        requests: list[Request] = []
        for query in queries:
            try:
                requests += self.requests(query)
            except GeostreamError:
                continue
        return submit(requests)

    def assemble(self, queries: Sequence[GeoSlice], batch: Prefetched) -> list[Sample]:
        """``[self[query] for query in queries]``, with the pixels that `prefetch` read.

        Where ``on_error="skip"`` left a chip with nothing, another chip of the batch stands in for it, a copy whose
        ``skipped`` is True.

        Raises:
            GeostreamError: what ``self[query]`` raises; under ``on_error="skip"`` only if all chips failed.
        """
        with prefetched(batch):
            samples = [self._sample_or_failure(query) for query in queries]
        good = [sample for sample in samples if not isinstance(sample, GeostreamError)]
        failures = [sample for sample in samples if isinstance(sample, GeostreamError)]
        if failures and not good:
            raise failures[0]
        return [
            _stand_in(good[i % len(good)]) if isinstance(sample, GeostreamError) else sample
            for i, sample in enumerate(samples)
        ]

    def __getitems__(self, queries: Sequence[GeoSlice]) -> list[Sample]:
        """A batch of samples, read as one plan; equal to ``[self[query] for query in queries]``."""
        return self.assemble(queries, self.prefetch(queries).result())

    def _sample_or_failure(self, query: GeoSlice) -> Sample | GeostreamError:
        try:
            return self[query]
        except GeostreamError as error:
            if not is_nothing_left(error):
                raise
            return error


def _stand_in(sample: Sample) -> Sample:
    twin = {key: value.clone() if isinstance(value, Tensor) else copy.copy(value) for key, value in sample.items()}
    return {**twin, "skipped": torch.tensor(data=True)}
