"""The public surface is what tests/golden/api.txt says: a change of it shows in review, never by accident.

python tests/test_api.py --write        after a change that is meant; it belongs into CHANGELOG.md too
"""

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import BuiltinFunctionType, ModuleType

import pytest

import weft

SNAPSHOT = Path(__file__).resolve().parent / "golden" / "api.txt"
PROPERTIES = ("property", "cached_property")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def signature(node: Function) -> str:
    """A function as its header says it; a property looks like a field."""
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    result = f"{ast.unparse(node.returns)}" if node.returns else "?"
    if any(decorator in PROPERTIES for decorator in decorators):
        return f"{node.name}: {result}"
    mark = "".join(f"@{name} " for name in decorators if name in ("classmethod", "staticmethod"))
    return f"{mark}{node.name}({ast.unparse(node.args)}) -> {result}"


def members(node: ast.ClassDef) -> Iterator[str]:
    for item in node.body:
        if isinstance(item, Function) and (item.name == "__init__" or not item.name.startswith("_")):
            yield signature(item)
        if isinstance(item, ast.AnnAssign) and not ast.unparse(item.target).startswith("_"):
            yield ast.unparse(item)


def defined(module: str, name: str) -> ast.AST:
    """The statement that defines `name` in a module's source."""
    tree = ast.parse(Path(importlib.import_module(module).__file__ or "").read_text(encoding="utf-8"))
    return next(node for node in tree.body if getattr(node, "name", None) == name)


def described(name: str, module: ModuleType = weft) -> str:
    thing = getattr(module, name)
    if isinstance(thing, str):
        return f"{name}: str"
    node = defined(thing.__module__, thing.__name__)
    if isinstance(node, Function):
        return signature(node)
    assert isinstance(node, ast.ClassDef)
    bases = ", ".join(map(ast.unparse, node.bases))
    return "\n    ".join([f"class {name}({bases})" if bases else f"class {name}", *members(node)])


def error_tree() -> Iterator[str]:
    tree = ast.parse(Path(importlib.import_module("weft.errors").__file__ or "").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield f"class weft.errors.{node.name}({', '.join(map(ast.unparse, node.bases))})"


def vector_names() -> Iterator[str]:
    """The names of weft.vectors; its distances are the core's, all with the signature of `Distance`."""
    for name in sorted(weft.vectors.__all__):
        thing = getattr(weft.vectors, name)
        native = isinstance(thing, BuiltinFunctionType)
        yield f"weft.vectors: {name}: Distance" if native else f"weft.vectors: {described(name, weft.vectors)}"


def autograd_names() -> Iterator[str]:
    """The names of weft.autograd, which nothing but a program that trains a network imports."""
    autograd = importlib.import_module("weft.autograd")
    for name in sorted(autograd.__all__):
        yield f"weft.autograd: {described(name, autograd)}"


def transport_names() -> Iterator[str]:
    """The names of weft.transport and weft.transport.drift."""
    transport = importlib.import_module("weft.transport")
    for name in sorted(transport.__all__):
        yield f"weft.transport: {described(name, transport)}"
    drift = importlib.import_module("weft.transport.drift")
    for name in sorted(drift.__all__):
        yield f"weft.transport.drift: {described(name, drift)}"


def surface() -> str:
    names = (described(name) for name in sorted(weft.__all__))
    parts = [*names, *vector_names(), *autograd_names(), *transport_names(), "\n".join(error_tree())]
    return "\n\n".join(parts) + "\n"


def test_the_public_surface_is_the_snapshot():
    assert surface() == SNAPSHOT.read_text(encoding="utf-8"), "if the change is meant: python tests/test_api.py --write"


@pytest.mark.parametrize("name", weft.__all__)
def test_every_public_name_is_there_and_documented(name):
    thing = getattr(weft, name)
    assert isinstance(thing, str) or (thing.__doc__ or "").strip()
    assert name in dir(weft)


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        weft.nonsense  # noqa: B018


def test_the_names_for_type_checkers_are_the_names():
    tree = ast.parse(Path(weft.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    homes = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert homes == weft._HOMES


if __name__ == "__main__" and "--write" in sys.argv:
    SNAPSHOT.write_text(surface(), encoding="utf-8")
