"""What one line of a batch input file turned out to be: a request to run, or a line with a problem."""

from enum import StrEnum

import msgspec

from broker.messages import Request


class RequestKind(StrEnum):
    """Which endpoint a line asks for, and so which object answers it."""

    CHAT = "chat"
    COMPLETION = "completion"


class BatchLine(msgspec.Struct, frozen=True, kw_only=True):
    """A request to run. `number` is its line in the file, from 1; `model` is None where none is named."""

    number: int
    custom_id: str
    kind: RequestKind
    model: str | None
    request: Request


class BadLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that cannot be run, with a stable `code` and what to do about it.

    `custom_id` is None where the line has none that can be read. `message` leaves the line number out;
    `str()` has it in front.
    """

    number: int
    custom_id: str | None
    code: str
    message: str

    def __str__(self) -> str:
        return f"line {self.number}: {self.message}"
