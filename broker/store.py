"""Opens everything that lives in one Redis, from one settings object."""

from typing import Self

from broker.backlog import Backlogs
from broker.bell import Bell
from broker.clock import Clock
from broker.connection import RedisClient, broker_errors, connect
from broker.errors import BrokerUnavailableError, ConfigurationError
from broker.keys import Keys
from broker.leader import Leadership
from broker.ledger import Ledger
from broker.outlook import Lookout
from broker.presence import Presence
from broker.pulse import Pulse
from broker.queries import Queries
from broker.results import START, LiveStream, OutputStream
from broker.scaling import Scale
from broker.sessions import Sessions
from broker.settings import BrokerSettings
from broker.waiting import WaitingJobs


class Store:
    """The ledger, the heartbeat table and the output streams of one Redis."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.url = settings.broker_url
        self.keys = Keys(settings.namespace)
        self.redis: RedisClient = connect(settings)
        self.ledger = Ledger(self.redis, self.keys, self.url)
        self.queries = Queries(self.redis, self.keys, self.url)
        self.sessions = Sessions(self.redis, self.keys, self.url, settings.heartbeat_timeout)
        self.backlogs = Backlogs(self.redis, self.keys, self.url)
        self.scale = Scale(self.redis, self.keys, self.url)

    def outputs(self, job_id: str, position: str = START) -> OutputStream:
        """A reader of a job's outputs."""
        return OutputStream(self.redis, self.keys, self.url, job_id, position)

    def live(self, job_id: str) -> LiveStream:
        """A reader of a job's text as it comes, and of its outputs."""
        return LiveStream(self.redis, self.keys, self.url, job_id)

    def waiting(self) -> WaitingJobs:
        """A follower of the jobs that wait."""
        return WaitingJobs(self.redis, self.keys, self.url, self.queries)

    def leadership(self, token: str, lease_s: float) -> Leadership:
        """A driver's claim to lead."""
        return Leadership(self.redis, self.keys, self.url, token, lease_s)

    def lookout(self, waiting: WaitingJobs) -> Lookout:
        """A leader's look at all of it."""
        return Lookout(self.redis, self.keys, self.url, self.sessions, waiting)

    def bell(self) -> Bell:
        """What rings for a leader that rests."""
        return Bell(self.redis, self.keys, self.url)

    def presence(self, clock: Clock) -> Presence:
        """A leader's question which connections are closed."""
        return Presence(self.redis, self.url, clock)

    def pulse(self, session_id: str, worker: str) -> Pulse:
        """A worker's beats, by a connection of their own."""
        return Pulse(self.settings, self.keys, session_id, worker)

    def has_leader(self) -> bool:
        """Whether a driver leads now."""
        with broker_errors(self.url):
            return bool(self.redis.exists(self.keys.leader))

    def check(self) -> Self:
        """Make sure that Redis answers and can be used.

        Raises:
            BrokerUnavailableError: it does not answer.
            ConfigurationError: it is a Redis Cluster, which the ledger's scripts cannot use.
        """
        with broker_errors(self.url):
            info = self.redis.info("cluster")
        if info.get("cluster_enabled"):
            raise ConfigurationError(
                f"Redis at {self.settings.masked_url} is a cluster; Stoker needs a single primary (or Sentinel)"
            )
        return self

    def hurry(self) -> None:
        """From now on take the first silence of Redis for its last: somebody waits, and it may have stopped."""
        before = self.redis.connection_pool
        self.redis.connection_pool = connect(self.settings, hurry=True).connection_pool
        before.disconnect(inuse_connections=False)

    def answers(self) -> bool:
        """Whether Redis answers now."""
        try:
            with broker_errors(self.url):
                return bool(self.redis.ping())
        except BrokerUnavailableError:
            return False

    def close(self) -> None:
        """Close the connections."""
        self.redis.close()
