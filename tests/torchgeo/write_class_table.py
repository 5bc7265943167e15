"""Run every raster class of the installed TorchGeo, and write what came of it into docs/torchgeo-classes.md."""

from __future__ import annotations

import re
import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from conftest import _import_torchgeo

PAGE = Path(__file__).parents[2] / "docs" / "torchgeo-classes.md"


def main() -> None:
    theirs = _import_torchgeo()
    from streams import raster_classes, table_row

    from geostream.testing import RangeServer

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, RangeServer(folder) as server:
        rows = [table_row(cls, server, Path(folder)) for cls in raster_classes(theirs)]
    title = f"## TorchGeo {version('torchgeo')}\n"
    section = "\n".join([title, "| class | what was run | result |", "|---|---|---|", *rows, ""])
    page = PAGE.read_text()
    old = re.search(rf"^{re.escape(title)}.*?(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    PAGE.write_text(
        page.replace(old.group(), section + "\n" * ("\n## " in page[old.end() - 1 :]))
        if old
        else f"{page.rstrip()}\n\n{section}"
    )


if __name__ == "__main__":
    main()
