"""What the start of an engine is busy with: said by whoever does it, heard by whoever asked."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

_listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


@contextmanager
def heard_by(listener: Callable[[str], None]) -> Generator[None]:
    """Within this, `listener` hears each stage that this thread comes to."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(stage: str) -> None:
    """Say what is done now, in a few words."""
    listener = _listener.get()
    if listener is not None:
        listener(stage)
