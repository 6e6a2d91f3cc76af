"""What a scaler is: somebody who can start workers, and stop them so that they finish or give back what they have."""

from collections.abc import Sequence
from typing import Protocol

from broker.records import Session


class Scaler(Protocol):
    """Starts and stops workers. Its calls return at once; what they begin goes on in the background."""

    @property
    def started(self) -> int:
        """Workers that it has started and not stopped, whether or not they have a session yet."""
        ...

    def scale(self, wanted: int, sessions: Sequence[Session]) -> str:
        """Have so many workers in all, those of others included. Returns what keeps it from that, '' for nothing."""
        ...

    def close(self) -> None:
        """Begin nothing any more. Safe to call twice."""
        ...
