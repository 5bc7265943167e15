"""Files as TorchGeo's raster datasets expect them: names, bands and values, class by class."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from affine import Affine

from geostream.testing.rasters import DEFAULT_TRANSFORM, write_cog

if TYPE_CHECKING:
    from pathlib import Path

SHAPE = 96, 112
STEP = 24, 40
"""(rows, columns) by which each scene lies south-east of the one before."""


@dataclass(frozen=True)
class Layout:
    """Files of one class."""

    scenes: tuple[tuple[str, ...], ...]
    """Names of the files of each scene."""
    count: int = 1
    """Bands of a file."""
    dtype: str = "uint8"
    """Pixel type."""
    values: tuple[int, ...] = tuple(range(12))
    """Values that pixels have; zeros, which TorchGeo takes for holes, among them."""
    nodata: float | None = None
    """Declared nodata value."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the constructor."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """Attributes of the class that whoever uses it must set."""

    def __str__(self) -> str:
        files = sum(map(len, self.scenes))
        bands = f"{self.count} bands each" if self.count > 1 else "one band each"
        return f"{len(self.scenes)} scenes, {files} files, {bands}, {self.dtype}".replace("1 scenes", "1 scene")

    def write(self, folder: Path) -> list[str]:
        """Write the files; return their names."""
        rng = np.random.default_rng(7)
        for number, names in enumerate(self.scenes):
            place = DEFAULT_TRANSFORM @ Affine.translation(number * STEP[1], number * STEP[0])
            for name in names:
                data = rng.choice(np.array(self.values, self.dtype), (self.count, *SHAPE))
                data[:, :8, :8] = 0 if self.nodata is None else self.nodata
                write_cog(
                    folder / name,
                    data,
                    transform=place,
                    nodata=self.nodata,
                    blocksize=32,
                    driver="GTiff",
                    overviews=False,
                )
        return [name for names in self.scenes for name in names]


def _each(pattern: str, *parts: Any) -> tuple[tuple[str, ...], ...]:
    """One scene of one file for each part."""
    return tuple((pattern.format(part),) for part in parts)


def _bands(pattern: str, bands: tuple[str, ...], *dates: str) -> tuple[tuple[str, ...], ...]:
    """One scene for each date, a file for each band."""
    return tuple(tuple(pattern.format(band=band, date=date) for band in bands) for date in dates)


_S2 = ("B02", "B03", "B04", "B08")


def _crop_files() -> tuple[tuple[str, ...], ...]:
    images = "train/imagery/{kind}/{field}/2017_07_{day}/{field}_2017_07_{day}_{band}_10m.tif"
    return tuple(
        (
            *(images.format(kind="s2", field=number, day="04", band=band) for band in ("B02", "B03")),
            f"train/labels/{number}.tif",
        )
        for number in ("17", "42")
    )


def _landsat(cls: type) -> Layout:
    glob = cls.filename_glob.split("_")[0]
    pattern = f"{glob}_L2SP_023032_{{date}}_20200220_02_T1/{glob}_L2SP_023032_{{date}}_20200220_02_T1_{{band}}.TIF"
    return Layout(_bands(pattern, cls.default_bands, "20200101", "20200117"), dtype="uint16", nodata=0)


def layout_of(cls: type) -> Layout | None:
    """The files of a class; None where none are known."""
    name = cls.__name__
    if name.startswith("Landsat") and hasattr(cls, "default_bands") and cls.filename_glob != "*":
        return _landsat(cls)
    if name.startswith("Chesapeake") and len(name) == len("ChesapeakeDC"):
        return Layout(_each(f"{name[-2:].lower()}_lulc_{{}}_2022-Edition.tif", 2013, 2017), values=(11, 12, 41, 127))
    return _LAYOUTS.get(name)


_LAYOUTS = {
    "AbovegroundLiveWoodyBiomassDensity": Layout(_each("{}N_020E.tif", "00", "10"), dtype="uint16"),
    "AgriFieldNetImage": Layout(
        _bands("source/ref_agrifieldnet_competition_v1_source_{date}_{band}_10m.tif", _S2, "0a0b1", "f00d1"),
        options={"bands": _S2},
        attributes={"filename_glob": "ref_agrifieldnet_competition_v1_source_*_B02_10m.*"},
    ),
    "AgriFieldNetMask": Layout(_each("ref_agrifieldnet_competition_v1_labels_train_{}.tif", "0a0b1", "f00d1")),
    "Airphen": Layout(_each("{}.tif", "flight1", "flight2"), count=8, dtype="uint16"),
    "AsterGDEM": Layout(_each("ASTGTMV003_{}_dem.tif", "N00E009", "N00E010"), dtype="int16", nodata=-9999),
    "CDL": Layout(_each("{}_30m_cdls.tif", 2022, 2023), values=(0, 1, 5, 24, 141, 254), options={"years": [2023]}),
    "CMSGlobalMangroveCanopy": Layout(
        _each("CMS/data/Mangrove_agb_{}.tif", "Angola", "Angola2"), dtype="float32", options={"country": "Angola"}
    ),
    "CopernicusEmbed": Layout(_each("embed_map_{}.tif", "310k"), count=16, dtype="float32"),
    "EUDEM": Layout(_each("eu_dem_v11_{}.TIF", "E30N10", "E30N20"), dtype="float32", nodata=-9999),
    "EmbeddedSeamlessData": Layout(_each("SDC30_EBD_V001_02VMN_{}.tif", 2023, 2024), count=2, dtype="uint16"),
    "EnMAP": Layout(
        _each("ENMAP01-____L2A-DT0000001053_20220611T072305Z_{}_V010111_20221116T120000Z-SPECTRAL_IMAGE.TIF", "001"),
        count=224,
        dtype="int16",
        nodata=-32768,
        options={"bands": ("B48", "B30", "B16")},
    ),
    "Esri2020": Layout(_each("{}_20200101-20210101.tif", "16T", "17T"), values=tuple(range(11)), nodata=0),
    "GlobBiomass": Layout(
        tuple((f"{tile}_agb.tif", f"{tile}_agb_err.tif") for tile in ("N00E020", "N00E060")),
        dtype="uint16",
        options={"measurement": "agb"},
    ),
    "GlobalBuildingMap": Layout(_each("GBM_v1_{}.tif", "e000_n05", "e005_n05"), values=(0, 1)),
    "GlobalMangroveWatch": Layout(_each("GMW_N00E009_{}_v3.tif", 2019, 2020), values=(0, 1), options={"years": [2020]}),
    "GoogleSatelliteEmbedding": Layout(
        _each("{}/10N/x086q72fv2f9q1x4a-0000000000-0000000000.tiff", 2023, 2024), count=64, dtype="int8", nodata=-128
    ),
    "L7IrishImage": Layout(_each("L71{}_03020010101.TIF", "023030"), count=9),
    "L7IrishMask": Layout(_each("L7_p{}_r30_newmask2015.TIF", 23, 24), values=(0, 64, 128, 192, 255)),
    "L8BiomeImage": Layout(_each("LC8023030{}LGN00.TIF", 2013001, 2013017), count=11, dtype="uint16"),
    "L8BiomeMask": Layout(_each("LC8023030{}LGN00_fixedmask.TIF", 2013001, 2013017), values=(0, 64, 128, 192, 255)),
    "NAIP": Layout(_each("m_{}_ne_16_060_20190901_20191201.tif", 4008501, 4008502), count=4),
    "NCCM": Layout(_each("CDL{}_clip.tif", 2017, 2019), values=(0, 1, 2, 3, 15), options={"years": [2019]}),
    "NLCD": Layout(
        _each("Annual_NLCD_LndCov_{}_CU_C1V1.tif", 2022, 2023),
        values=(11, 12, 41, 95, 250),
        nodata=250,
        options={"years": [2023]},
    ),
    "OpenAerialMap": Layout(_each("OAM-{}.tif", "1", "2"), count=3, options={"crs": "EPSG:32632"}),
    "PRISMA": Layout(_each("PRS_L2D_STD_{}_0001.tif", "20210101000000_20210101000010"), count=6, dtype="uint16"),
    "PrestoEmbeddings": Layout(_each("Togo_Presto_embeddings_{}.tif", 1, 2), count=128, dtype="uint16"),
    "RasterDataset": Layout(_each("{}.tif", "a", "b"), count=3),
    "Sentinel": Layout(_each("{}.tif", "a", "b"), count=3),
    "Sentinel1": Layout(
        _bands("S1A_IW_{date}_DVP_RTC30_G_gpuned_1B8F_{band}.tif", ("VV", "VH"), "20221204T161641"),
        dtype="float32",
        nodata=0,
    ),
    "Sentinel2": Layout(
        _bands("S2.SAFE/GRANULE/IMG_DATA/R10m/T26EMU_{date}_{band}_10m.tif", _S2, "20220414T110751", "20220419T110751"),
        dtype="uint16",
        nodata=0,
        options={"bands": _S2},
    ),
    "SouthAfricaCropType": Layout(_crop_files(), values=tuple(range(10)), options={"bands": ("B02", "B03")}),
    "SouthAmericaSoybean": Layout(_each("SouthAmerica_Soybean_{}.tif", 2020, 2021), values=(0, 1)),
    "TesseraEmbeddings": Layout(_each("grid_0.15_{}_2024.tiff", "51.85", "51.95"), count=128, dtype="float32"),
}
