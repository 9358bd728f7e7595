"""The numpy interpreter: complete, slow, the oracle that every other backend is held against."""

from weft.backends.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
