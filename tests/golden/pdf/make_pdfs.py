"""PDF files for the page's reader, with the text that pypdf reads in them: tests/golden/pdf/*.pdf and texts.json.

    python tests/golden/pdf/make_pdfs.py

reportlab, pikepdf and pypdf are needed for this and not to run the tests; versions.json says which made them.
"""

import io
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import pikepdf  # noqa: E402
from made_with import note_versions  # noqa: E402
from PIL import Image  # noqa: E402
from pypdf import PdfReader, PdfWriter  # noqa: E402
from reportlab.lib.pagesizes import A5  # noqa: E402
from reportlab.lib.utils import ImageReader  # noqa: E402
from reportlab.pdfbase import pdfmetrics  # noqa: E402
from reportlab.pdfbase.ttfonts import TTFont  # noqa: E402
from reportlab.pdfgen import canvas  # noqa: E402

FONT = "Vera.ttf"  # comes with reportlab
LINES = [
    ["Weaving on a loom", "A weft thread passes over and under", "the warp: 50 % of the time above it."],
    ["Second page", "Café, naïve, Zürich, façade — “quoted” words", "cost £5 or €6 (at least)."],
]
TRUETYPE = [["Höhe, Ångström, ółć", "A font of which a part is in the file", "letters: ÆØÅ ß ñ – “fi”"]]


def drawn(lines: list[list[str]], font: str, size: int = 12) -> bytes:
    made = io.BytesIO()
    sheet = canvas.Canvas(made, pagesize=A5, invariant=True)
    for page in lines:
        sheet.setFont(font, size)
        for i, line in enumerate(page):
            sheet.drawString(50, 500 - 16 * i, line)
        sheet.showPage()
    sheet.save()
    return made.getvalue()


def compressed(plain: bytes) -> bytes:
    """The same file with object streams, and without a table of offsets that can be read as text."""
    made = io.BytesIO()
    with pikepdf.open(io.BytesIO(plain)) as opened:
        opened.save(made, object_stream_mode=pikepdf.ObjectStreamMode.generate, deterministic_id=True)
    return made.getvalue()


def encrypted(plain: bytes) -> bytes:
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(plain)))
    writer.encrypt("secret", algorithm="RC4-128")
    made = io.BytesIO()
    writer.write(made)
    return made.getvalue()


def scanned() -> bytes:
    made = io.BytesIO()
    sheet = canvas.Canvas(made, pagesize=A5, invariant=True)
    sheet.drawImage(ImageReader(Image.new("RGB", (40, 60), "grey")), 0, 0, 200, 300)
    sheet.showPage()
    sheet.save()
    return made.getvalue()


def main() -> None:
    pdfmetrics.registerFont(TTFont("Vera", FONT))
    plain = drawn(LINES, "Helvetica")
    files = {
        "standard": plain,
        "truetype": drawn(TRUETYPE, "Vera"),
        "object_streams": compressed(plain),
        "encrypted": encrypted(plain),
        "scanned": scanned(),
    }
    for name, content in files.items():
        (HERE / f"{name}.pdf").write_bytes(content)
    readable = ("standard", "truetype", "object_streams")
    texts = {name: [page.extract_text() for page in PdfReader(HERE / f"{name}.pdf").pages] for name in readable}
    (HERE / "texts.json").write_text(json.dumps(texts, indent=1, ensure_ascii=False) + "\n")
    for made in (HERE / "texts.json", *HERE.glob("*.pdf")):
        note_versions(made, "reportlab", "pikepdf", "pypdf")


if __name__ == "__main__":
    main()
