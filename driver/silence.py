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
