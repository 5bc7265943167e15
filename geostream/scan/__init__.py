"""Finding scenes: list what lies at paths and URLs, read the headers of many files at once, and keep what they say.

All of it runs on a temporary loop that is closed afterwards, so that a dataset can be made in a process that forks.
"""

from geostream.scan.build import build_index, load_index
from geostream.scan.headers import scan
from geostream.scan.listing import Listing, Paths, describe_paths, each_path, list_scenes
from geostream.scan.names import basename, basenames, is_sidecar, name_matches, name_span, names_matching

__all__ = [
    "Listing",
    "Paths",
    "basename",
    "basenames",
    "build_index",
    "describe_paths",
    "each_path",
    "is_sidecar",
    "list_scenes",
    "load_index",
    "name_matches",
    "name_span",
    "names_matching",
    "scan",
]
