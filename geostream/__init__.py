"""Train on cloud-hosted rasters without making a copy."""

__version__ = "0.1.0"
