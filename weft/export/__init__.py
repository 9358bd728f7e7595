"""Bundles: models that C programs and browsers run without Python, and adapters for them."""

from weft.export.adapters import ExportedAdapter
from weft.export.bundle import Exported, export, export_adapter

__all__ = ["Exported", "ExportedAdapter", "export", "export_adapter"]
