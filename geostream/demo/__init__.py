"""``geostream demo``: train on chips read from COGs behind a slow object store, and compare with GDAL's ``/vsicurl``.

Everything a user would write is in `geostream.demo.scenes` and `geostream.demo.show`, and uses the public API only.
"""
