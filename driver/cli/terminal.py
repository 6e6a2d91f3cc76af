"""A client for commands that somebody waits for at a terminal: without an answer they end within seconds."""

from collections.abc import Generator
from contextlib import contextmanager

from broker.errors import BrokerUnavailableError
from driver.client import Client
from driver.errors import UnconfirmedError


def short_client(broker: str | None) -> Client:
    """A client of a broker that answers now.

    Raises:
        ConfigurationError: the URL is wrong, or Redis is a cluster.
        BrokerUnavailableError: Redis does not answer within `HURRY_S` seconds; so does every later call.
    """
    client = Client(broker)
    client.store.hurry()
    client.store.check()
    return client


@contextmanager
def told(*, look: str) -> Generator[None]:
    """Around what changes something: an answer that is late must not read as if nothing had been done.

    Raises:
        UnconfirmedError: Redis did not answer; it names the command that shows what came of it.
    """
    try:
        yield
    except BrokerUnavailableError as error:
        raise UnconfirmedError(f"not confirmed, it may have been done: look with `{look}`: {error}") from error
