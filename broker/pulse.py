"""A session's beats, by a connection that nothing else uses: it closes with the worker's process and not before.

The beats say which one it is. So the leader, when they fail to come, can ask Redis whether the process is still there.
"""

import msgspec

from broker.connection import RedisClient, connect
from broker.keys import Keys
from broker.presence import own_name
from broker.records import BeatAnswer, Heartbeat
from broker.sessions import Sessions
from broker.settings import BrokerSettings


class Pulse:
    """Renews one session's lease. For one thread, so that its client needs one connection and no more."""

    def __init__(self, settings: BrokerSettings, keys: Keys, session_id: str, worker: str) -> None:
        self._url = settings.broker_url
        self._session_id = session_id
        self._worker = worker
        self._name: str | None = None
        self._redis: RedisClient = connect(settings, self._forget_name)
        self._sessions = Sessions(self._redis, keys, self._url, settings.heartbeat_timeout)

    @property
    def is_settled(self) -> bool:
        """Whether the last beat named the connection that there is now; else another one should follow at once."""
        return self._name is not None

    def beat(self, heartbeat: Heartbeat) -> BeatAnswer:
        """Renew the lease and report.

        Raises:
            BrokerUnavailableError: Redis does not answer.
        """
        if self._name is None:
            self._name = own_name(self._redis, self._url)
        # Where the connection is made anew in the middle of this, the name is forgotten on the way.
        named = msgspec.structs.replace(heartbeat, connection=self._name)
        return self._sessions.beat(self._session_id, self._worker, named)

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()

    def _forget_name(self) -> None:
        self._name = None
