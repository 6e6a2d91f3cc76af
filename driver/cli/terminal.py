"""A client for commands that somebody waits for at a terminal: without an answer they end within seconds."""

from driver.client import Client


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
