"""The page's files keep its rules: small modules, nothing from elsewhere, no markup out of text, a strict policy."""

import importlib.util
import re
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "weft" / "serve" / "page"
FILES = sorted(path for path in PAGE.rglob("*") if path.is_file() and path.suffix != ".md")
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
MAX_LINES, MAX_BYTES = 300, 400_000  # a reader of PDF files and formulas: 60,000
# Ways from text to markup or code.
UNSAFE = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc|setHTML"
)
NAMESPACE = "http://www.w3.org/2000/svg"


def name(path: Path) -> str:
    return path.relative_to(PAGE).as_posix()


class Markup(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.inline: list[str] = []
        self._script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inline += [f"{tag} {key}" for key, _ in attrs if key.startswith("on") or key == "style"]
        self.inline += ["style"] if tag == "style" else []
        self.links += [value or "" for key, value in attrs if key in ("href", "src")]
        self._script = tag == "script"

    def handle_data(self, data: str) -> None:
        if self._script and data.strip():
            self.inline.append("script")

    def handle_endtag(self, tag: str) -> None:
        self._script = False


def test_files_are_small():
    assert len(SCRIPTS) > 20
    assert not [name(path) for path in FILES if path.read_text().count("\n") > MAX_LINES]
    assert sum(path.stat().st_size for path in FILES) < MAX_BYTES


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_a_module_says_what_it_is_and_imports_what_is_there(path):
    text = path.read_text()
    assert text.startswith("// "), "the first line says what the module is for"
    assert not UNSAFE.search(text)
    for target, names in re.findall(r'^import (?:(?=")|\{([^}]*)\} from )"([^"]+)";', text, re.MULTILINE):
        target, names = names, target
        found = (path.parent / target).resolve()
        assert found.is_file(), f"{name(path)} imports {target}"
        for one in filter(None, (word.strip().split(" as ")[0] for word in names.split(","))):
            assert re.search(rf"export (?:async )?(?:function\*?|const|class|let) {one}\b", found.read_text()), one
            own = re.search(rf"{one} as (\w+)", names)
            used = own.group(1) if own else one
            assert len(re.findall(rf"\b{re.escape(used)}\b", text)) > 1, f"{name(path)} does not use {used}"


def test_nothing_comes_from_elsewhere():
    for path in FILES:
        text = path.read_text().replace(NAMESPACE, "")
        assert not re.search(r"""(?:url\(|@import|src=|href=|from |import\()\s*["']?(?:https?:)?//""", text), name(path)


def test_the_document_has_no_inline_code_and_only_its_own_files():
    markup = Markup()
    markup.feed((PAGE / "index.html").read_text())
    assert not markup.inline
    files = [link for link in markup.links if link.startswith("page/")]
    assert len(files) > 5 and not [link for link in files if not (PAGE / link[5:]).is_file()]
    styles = {f"page/{name(path)}" for path in FILES if path.suffix == ".css"}
    assert styles <= set(files), "every stylesheet is loaded"


def test_the_server_sends_every_file_with_the_policy(server):
    with httpx.Client(base_url=server.url) as client:
        for path in FILES:
            answer = client.get("/" if path.name == "index.html" else f"/page/{name(path)}")
            assert answer.status_code == 200 and answer.content == path.read_bytes(), name(path)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_pictures_show_this_page():
    spec = importlib.util.spec_from_file_location("weft_tool_screenshots", ROOT / "tools" / "screenshots.py")
    assert spec and spec.loader
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    folder = ROOT / "docs" / "page"
    assert {path.stem for path in folder.glob("*.png")} == {view[0] for view in tool.VIEWS}
    assert (folder / "digest.txt").read_text().strip() == tool.digest(), "run tools/screenshots.py"
