# The compiled core, csrc/bind. What it takes is checked at run time; its types are not spelt out twice.
from typing import Any

def __getattr__(name: str) -> Any: ...
