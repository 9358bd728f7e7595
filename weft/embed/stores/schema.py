"""The tables of a store, in steps: a store of version n has had the first n, and opening it runs the missing ones.

A released step is never edited; the next change is a new step. `{id}` is the dialect's type of ids, which are compared
byte by byte. The vectors of generation n are in a table of their own, vectors_n: its column has the model's dimension,
and dropping a generation is cheap.
"""

MARK = "weft_store"  # the table that marks a database as a store

STEPS: tuple[tuple[str, ...], ...] = (
    (
        f"CREATE TABLE {MARK} (version INTEGER NOT NULL, next_generation INTEGER NOT NULL)",
        f"INSERT INTO {MARK} VALUES (0, 1)",
        # revision grows with every change, deletion included; vectors carry the revision of the text they are of
        """CREATE TABLE documents (
            id {id} PRIMARY KEY, text TEXT NOT NULL, revision BIGINT NOT NULL, deleted INTEGER NOT NULL)""",
        """CREATE TABLE generations (
            number INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE, dimension INTEGER NOT NULL,
            model TEXT NOT NULL)""",
        # the fingerprint that is served, stored here and nowhere else
        "CREATE TABLE served (one INTEGER PRIMARY KEY CHECK (one = 1), fingerprint TEXT)",
        "INSERT INTO served VALUES (1, NULL)",
        # at most one row has open = 1; the others have NULL there
        """CREATE TABLE migrations (
            id INTEGER PRIMARY KEY, open INTEGER UNIQUE, source TEXT, target TEXT NOT NULL, generation INTEGER,
            dimension INTEGER NOT NULL, model TEXT NOT NULL, state TEXT NOT NULL, settled TEXT,
            processed BIGINT NOT NULL, skips TEXT, error TEXT,
            window_s DOUBLE PRECISION NOT NULL, planned_at DOUBLE PRECISION NOT NULL,
            started_at DOUBLE PRECISION, ended_at DOUBLE PRECISION, worked_s DOUBLE PRECISION NOT NULL,
            lease_owner TEXT, lease_until DOUBLE PRECISION)""",
        # documents whose vector of a generation is missing; a document is here or has a current vector or is skipped
        "CREATE TABLE todo (generation INTEGER NOT NULL, id {id} NOT NULL, PRIMARY KEY (generation, id))",
        """CREATE TABLE skips (
            generation INTEGER NOT NULL, id {id} NOT NULL, revision BIGINT NOT NULL, reason TEXT NOT NULL,
            detail TEXT NOT NULL, PRIMARY KEY (generation, id))""",
    ),
    (
        # counts changes of a generation's vectors, in databases that weft itself searches: `Dialect.watch`
        "ALTER TABLE generations ADD COLUMN changes BIGINT NOT NULL DEFAULT 0",
        # canary texts and vectors, for embedders whose fingerprint does not prove which weights they use
        "ALTER TABLE generations ADD COLUMN canaries TEXT",
    ),
    (
        # the document's fields, a JSON object; NULL for none
        "ALTER TABLE documents ADD COLUMN fields TEXT",
        # Of a chunk: the id of its document, and its place in the document's text, in characters. The document itself
        # then has a row too, marked as deleted: writers of the document lock it first.
        "ALTER TABLE documents ADD COLUMN chunk_of {id}",
        "ALTER TABLE documents ADD COLUMN start_at BIGINT",
        "ALTER TABLE documents ADD COLUMN end_at BIGINT",
        "CREATE INDEX documents_chunk_of ON documents (chunk_of)",
    ),
)

VECTORS = """CREATE TABLE vectors_{number} (
    id {id} PRIMARY KEY, revision BIGINT NOT NULL, checksum BIGINT NOT NULL, vector {vector} NOT NULL)"""
