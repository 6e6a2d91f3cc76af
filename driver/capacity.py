"""Looks at what waits and how fast it goes, for those who keep the number of workers right."""

from collections.abc import Sequence
from functools import cache

from broker.clock import Clock
from broker.records import Session
from broker.store import Store
from driver.detector import DetectorLimits
from driver.scalers.base import Scaler
from driver.scaling import Scaling
from driver.settings import DriverSettings
from driver.speeds import Speeds


class Capacity:
    """The leader's care for workers: how many there are."""

    def __init__(
        self,
        store: Store,
        settings: DriverSettings,
        detector: DetectorLimits,
        clock: Clock,
        scaler: Scaler | None = None,
    ) -> None:
        self._store = store
        self._speeds = Speeds()
        self._scaling = Scaling(store, settings, detector, clock, scaler)

    def step(self, token: str, sessions: Sequence[Session]) -> None:
        """Look and decide once.

        Raises:
            NotLeaderError: `token` does not hold the lead.
        """
        self._speeds.note(sessions)
        read = cache(self._store.backlogs.read)  # at most once, and not at all where nobody decides
        self._scaling.step(token, sessions, self._speeds, read)

    def close(self) -> None:
        """Have nothing done any more."""
        self._scaling.close()
