"""Bytes from anywhere: one small interface over fsspec's filesystems.

`get_range` reads a range with retries, checks and counters; `run`, `submit` and `scan_session` are the loops it runs
on; `Access` says how URLs are reached; `list_files` finds them.
"""

from geostream.transport.access import Access, normalize_url
from geostream.transport.answer import WHOLE_OBJECT_LIMIT, Body
from geostream.transport.fetch import get_range
from geostream.transport.listing import FileEntry, list_files
from geostream.transport.loop import LoopThread, run, scan_session, submit
from geostream.transport.obstore_options import Transport
from geostream.transport.retry import DEFAULT_RETRY, RetryPolicy

__all__ = [
    "DEFAULT_RETRY",
    "WHOLE_OBJECT_LIMIT",
    "Access",
    "Body",
    "FileEntry",
    "LoopThread",
    "RetryPolicy",
    "Transport",
    "get_range",
    "list_files",
    "normalize_url",
    "run",
    "scan_session",
    "submit",
]
