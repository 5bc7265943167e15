"""``geostream bench``: the same chips from the same range server, by geostream, GDAL and a copy made beforehand.

`geostream.bench.run` measures; every arm runs in a process of its own (`geostream.bench.child`), so that each round
begins as cold as the others, and what the arms keep does not add up.
"""
