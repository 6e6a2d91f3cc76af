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
