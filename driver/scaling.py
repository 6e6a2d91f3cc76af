"""Keeps the number of workers right: the leader looks at the work, decides, tells everybody, and has it done."""

import logging
from collections.abc import Callable, Sequence

from broker.bounds import Bounds, parse_bounds
from broker.clock import Clock
from broker.records import Backlog, ScaleMode, ScaleRecord, Session
from broker.store import Store
from driver.autoscaling import Load, ScaleLimits, ScaleState, decide, start
from driver.detector import DetectorLimits
from driver.scalers.base import Scaler
from driver.settings import DriverSettings, models_to_switch
from driver.speeds import Speeds
from driver.workload import asleep, load_of, staying, workload

logger = logging.getLogger(__name__)


class Scaling:
    """Decides while there are bounds: people's, set with `stoker scale`, or else those of the driver's settings.

    Without a `scaler` the number is only published, for whoever runs the workers.
    """

    def __init__(
        self,
        store: Store,
        settings: DriverSettings,
        detector: DetectorLimits,
        clock: Clock,
        scaler: Scaler | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._detector = detector
        self._clock = clock
        self._scaler = scaler
        self._own_bounds = parse_bounds(settings.autoscale) if settings.autoscale else None
        self._state: ScaleState | None = None
        self._problem = ""
        self._length_ratio = 1.0
        self._switchable = frozenset(models_to_switch(settings))
        self._models: set[str] = set()  # that workers serve or have served

    def step(self, token: str, sessions: Sequence[Session], speeds: Speeds, read: Callable[[], Backlog]) -> None:
        """Decide once; `read` gives what waits.

        Raises:
            NotLeaderError: `token` does not hold the lead.
        """
        self._models |= {row.model for row in sessions if row.model}
        record = self._store.scale.read()
        bounds = self._own_bounds if record.mode is ScaleMode.DRIVER else Bounds(record.least, record.most)
        if bounds is None:
            self._state = None
            if record.wanted >= 0:
                self._store.scale.want(token, ScaleRecord(wanted=-1))
            return
        load = self._look(sessions, speeds, read())
        self._state = decide(load, self._state_before(record, sessions), self._limits(bounds), self._clock.now_s())
        self._publish(token, record, bounds, load)  # before it is done: only the leader gets past this
        self._problem = self._scaler.scale(self._state.wanted, sessions) if self._scaler else ""

    def close(self) -> None:
        """Have nothing done any more."""
        if self._scaler is not None:
            self._scaler.close()

    def _look(self, sessions: Sequence[Session], speeds: Speeds, backlog: Backlog) -> Load:
        # Work for a model that nobody serves, nor can be switched to, asks for no more workers.
        models = self._models | self._switchable if self._models else ()
        work = workload(backlog, models, self._length_ratio)
        self._length_ratio = work.length_ratio
        return load_of(work, sessions, self._detector, speeds)

    def _state_before(self, record: ScaleRecord, sessions: Sequence[Session]) -> ScaleState:
        """Go on from what is published: another driver may have led meanwhile."""
        if self._state is not None and record.wanted in (-1, self._state.wanted):
            return self._state
        present = len(staying(sessions, self._detector)) + len(asleep(sessions, self._detector))
        there = max(present, self._scaler.started if self._scaler else 0)
        return start(record.wanted if record.wanted >= 0 else there, self._clock.now_s())

    def _limits(self, bounds: Bounds) -> ScaleLimits:
        return ScaleLimits(
            least=bounds.least,
            most=bounds.most,
            drain_target_s=self._settings.drain_target,
            cooldown_s=self._settings.scale_in_cooldown,
            trend_window_s=self._settings.trend_window,
        )

    def _publish(self, token: str, record: ScaleRecord, bounds: Bounds, load: Load) -> None:
        assert self._state is not None
        wanted, problem = self._state.wanted, self._problem
        changed = wanted != record.wanted
        if not changed and (str(bounds), problem) == (record.bounds, record.problem):
            return
        reason = self._reason(load) if bounds.least < bounds.most else "asked for"
        if changed:
            logger.info("workers wanted: %d (%s)", wanted, reason)
        new = ScaleRecord(
            wanted=wanted, bounds=str(bounds), reason=reason if changed else record.reason, problem=problem
        )
        self._store.scale.want(token, new)

    def _reason(self, load: Load) -> str:
        if load.is_idle:
            return "nothing to do"
        speed = f"{load.tokens_per_s:,.0f} tokens/s a worker" if load.tokens_per_s else "a speed not known yet"
        return f"about {load.tokens:,.0f} tokens to generate in {self._settings.drain_target:g} s, at {speed}"
