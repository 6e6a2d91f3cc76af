"""When silence means something: not just after an outage, when nobody has had the time to be heard again."""

from broker.clock import Clock


class Silence:
    """Whether those who must be heard of every `limit_s` seconds may be judged by their silence."""

    def __init__(self, clock: Clock, limit_s: float) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._from_s = float("-inf")

    @property
    def counts(self) -> bool:
        """Whether everybody has had the time to be heard since silence was last forgiven."""
        return self._clock.now_s() >= self._from_s

    def forgive(self) -> None:
        """Nobody could be heard: whatever the ledger says, all have their whole time from now on."""
        self._from_s = self._clock.now_s() + self._limit_s

    def mind_restart(self, uptime_s: float) -> None:
        """After a restart of Redis everybody looks silent, though all may be well."""
        if uptime_s < self._limit_s:
            self.forgive()


class ServerTime:
    """Compares the server's clock with ours. After a failover, or the sleep of a laptop, it may have jumped ahead."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_s: float | None = None

    def jump_s(self, now_ms: int) -> float:
        """By how many seconds more than ours it has gone on since the last call; `now_ms` is its time."""
        before_s, self._ahead_s = self._ahead_s, now_ms / 1000 - self._clock.now_s()
        return 0.0 if before_s is None else self._ahead_s - before_s


class Silences:
    """Whom a driver must hear of: the workers, by beats and connections, and the clients of open jobs."""

    def __init__(self, clock: Clock, *, of_workers_s: float, of_clients_s: float) -> None:
        self.of_workers = Silence(clock, of_workers_s)
        self.absence_of_workers = Silence(clock, of_workers_s)
        self.of_clients = Silence(clock, of_clients_s)
        self._clock = clock
        self._longest_stall_s = of_workers_s / 2
        self._server_time = ServerTime(clock)
        self._looked_s: float | None = None

    def forgive(self) -> None:
        """Nobody could be heard."""
        self.of_workers.forgive()
        self.absence_of_workers.forgive()
        self.of_clients.forgive()

    def mind_restart(self, uptime_s: float) -> None:
        """Redis has been running for so long only.

        Absence needs none of this: a connection's name says of which run of Redis it is.
        """
        self.of_workers.mind_restart(uptime_s)
        self.of_clients.mind_restart(uptime_s)

    def mind_stall(self, now_ms: int) -> None:
        """When Redis, this driver or both stood still for long and no call failed, the beats are old all the same.

        `now_ms` is the server's time.
        """
        stalled_s = 0.0 if self._looked_s is None else self._clock.now_s() - self._looked_s
        if max(stalled_s, self._server_time.jump_s(now_ms)) > self._longest_stall_s:
            self.forgive()

    def note_end_of_look(self) -> None:
        """The driver has done what it had to; from now on it may stand still."""
        self._looked_s = self._clock.now_s()
