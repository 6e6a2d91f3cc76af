"""Asks idle workers to serve the model that has most to do, where the driver's settings allow it. The leader's task."""

import logging
from collections.abc import Callable, Sequence

from celery import Celery

from broker.clock import Clock
from broker.commands import SwitchModel
from broker.records import Backlog, Session
from broker.states import WorkerState
from driver.detector import DetectorLimits, Verdict, judge
from driver.models import Move, Serving, SwitchLimits, SwitchState, decide_switches
from driver.settings import DriverSettings, models_to_switch
from driver.speeds import Speeds
from driver.workload import staying, waiting_by_model

logger = logging.getLogger(__name__)

LONGEST_HOLD_S = 5.0


class Switching:
    """Decides by backlog, and tells workers through Celery's remote control; it does not wait for their answers.

    A worker that does not do as it is told stays what it was, and is asked again later.
    """

    def __init__(self, settings: DriverSettings, detector: DetectorLimits, clock: Clock, app: Celery) -> None:
        self._models = models_to_switch(settings)
        self._limits = SwitchLimits(
            models=frozenset(self._models),
            least_backlog_s=settings.switch_backlog,
            hold_s=min(LONGEST_HOLD_S, settings.switch_backlog),
            stay_s=settings.switch_stay,
        )
        self._detector = detector
        self._clock = clock
        self._app = app
        self._state = SwitchState()

    def step(self, sessions: Sequence[Session], speeds: Speeds, read: Callable[[], Backlog]) -> None:
        """Decide once; `read` gives what waits."""
        if not self._models:
            return
        backlogs = waiting_by_model(read())
        workers = [self._serving(row) for row in staying(sessions, self._detector)]
        now_s = self._clock.now_s()
        switches = decide_switches(backlogs, workers, speeds.tokens_per_s, self._state, self._limits, now_s)
        self._state = switches.state
        for move in switches.moves:
            self._ask(move)

    def _serving(self, row: Session) -> Serving:
        idle = row.state == WorkerState.READY and not row.batches and judge(row, self._detector) is Verdict.ALIVE
        return Serving(worker=row.worker, model=row.model, is_idle=idle)

    def _ask(self, move: Move) -> None:
        logger.info("%s is asked to serve %s", move.worker, move.model)
        # What is assigned to it between the look and the switch, it ends first.
        command = SwitchModel(model=self._models[move.model], served_model_name=move.model, finish=True)
        arguments = {name: getattr(command, name) for name in command.__struct_fields__}
        self._app.control.broadcast(command.name, arguments=arguments, destination=[move.worker])
