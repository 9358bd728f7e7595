"""Bundles: models that C programs, and one day browsers, run without Python."""

from weft.export.bundle import Exported, export

__all__ = ["Exported", "export"]
