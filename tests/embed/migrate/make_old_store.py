"""Make old_store.sql: a store of version 2, written by weft before documents had fields and chunks (commit 3060b5e).

PYTHONPATH=<a checkout of that commit> python tests/embed/migrate/make_old_store.py
"""

import sqlite3
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))
from fake_embedder import FakeEmbedder  # noqa: E402

from weft.embed.migrate import Corpus, Migrator  # noqa: E402
from weft.embed.stores import open_store  # noqa: E402
from weft.embed.stores.schema import STEPS  # noqa: E402

assert len(STEPS) == 2, "this script needs the weft of then"
OLD, NEW = FakeEmbedder("old"), FakeEmbedder("new", 4)

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "store.db"
    with open_store(path, create=True, clock=lambda: 1_800_000_000.0) as store:
        store.adopt(OLD.fingerprint, OLD.dimension, "old")
        corpus = Corpus(store, OLD)
        corpus.put({f"d{i}": f"text {i}" for i in range(6)})
        corpus.put({"d1": "text 1, changed"})
        corpus.delete("d5")
        Migrator(store, NEW, batch=2).run()  # completed, and both models are written
    connection = sqlite3.connect(path)
    (HERE / "old_store.sql").write_text("\n".join(connection.iterdump()) + "\n", encoding="utf-8")
    connection.close()
