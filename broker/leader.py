"""Leadership among drivers: a lease in Redis, with a term that grows at every change of leader."""

from broker.connection import RedisClient
from broker.keys import Keys
from broker.scripts import Scripts


class Leadership:
    """One driver's claim to lead, under its own token."""

    def __init__(self, client: RedisClient, keys: Keys, url: str, token: str, lease_s: float) -> None:
        self._keys = keys
        self._scripts = Scripts(client, url)
        self._lease_ms = int(lease_s * 1000)
        self.token = token

    def acquire_or_renew(self) -> int:
        """The term while this driver leads, 0 while another does."""
        return int(self._scripts.run("lead", [self._keys.leader, self._keys.leader_term], [self.token, self._lease_ms]))

    def resign(self) -> None:
        """Give up the lead, so that another need not wait for the lease to end."""
        self._scripts.run("resign", [self._keys.leader], [self.token])
