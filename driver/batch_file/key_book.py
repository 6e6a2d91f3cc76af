"""Keys of a long file, each with a number, on disk: a million of them take a few megabytes of memory, not hundreds."""

import sqlite3

CACHE_KIB = 4096


class KeyBook:
    """The number under which each key came first. The file behind it has no name, and is gone when this is closed."""

    def __init__(self) -> None:
        # An empty name is a temporary file; nothing of it must outlive a crash. A generator that uses the book may be
        # closed by another thread, never used by two.
        self._table = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for statement in (
            "PRAGMA journal_mode = OFF",
            "PRAGMA synchronous = OFF",
            f"PRAGMA cache_size = -{CACHE_KIB}",
            "CREATE TABLE book (key BLOB PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID",
            "BEGIN",
        ):
            self._table.execute(statement)

    def first(self, key: bytes, number: int) -> int:
        """The number under which the key came first: this one, if it is new."""
        if self._table.execute("INSERT OR IGNORE INTO book VALUES (?, ?)", (key, number)).rowcount:
            return number
        return self._table.execute("SELECT number FROM book WHERE key = ?", (key,)).fetchone()[0]

    def __contains__(self, key: object) -> bool:
        return self._table.execute("SELECT 1 FROM book WHERE key = ?", (key,)).fetchone() is not None

    def __len__(self) -> int:
        return self._table.execute("SELECT count(*) FROM book").fetchone()[0]

    def close(self) -> None:
        """Forget everything."""
        self._table.close()
