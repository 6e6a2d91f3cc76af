"""Looks at what waits and how fast it goes, for those who keep the number of workers and their models right."""

from collections.abc import Sequence
from functools import cache

from celery import Celery

from broker.clock import Clock
from broker.records import Session
from broker.store import Store
from driver.detector import DetectorLimits
from driver.scalers.base import Scaler
from driver.scaling import Scaling
from driver.settings import DriverSettings
from driver.speeds import Speeds
from driver.switching import Switching


class Capacity:
    """The leader's care for workers: how many there are, and what they serve."""

    def __init__(
        self,
        store: Store,
        settings: DriverSettings,
        detector: DetectorLimits,
        clock: Clock,
        app: Celery,
        scaler: Scaler | None = None,
    ) -> None:
        self._store = store
        self._speeds = Speeds()
        self._scaling = Scaling(store, settings, detector, clock, scaler)
        self._switching = Switching(settings, detector, clock, app)

    def step(self, token: str, sessions: Sequence[Session]) -> None:
        """Look and decide once.

        Raises:
            NotLeaderError: `token` does not hold the lead.
        """
        self._speeds.note(sessions)
        read = cache(self._store.backlogs.read)  # at most once, and not at all where nobody decides
        self._scaling.step(token, sessions, self._speeds, read)
        self._switching.step(sessions, self._speeds, read)

    def close(self) -> None:
        """Have nothing done any more."""
        self._scaling.close()
