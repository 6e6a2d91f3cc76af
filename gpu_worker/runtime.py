"""What lives as long as a worker's session: the engine, the heartbeat, and the state that the driver sees."""

import logging
import time
from collections.abc import Callable

from broker.errors import BrokerError, BrokerUnavailableError
from broker.later import call_later
from broker.records import Cause, Heartbeat
from broker.states import WorkerState
from broker.store import Store
from gpu_worker.engine.base import Engine
from gpu_worker.engine.progress import heard_by
from gpu_worker.engine_loop import EngineLoop
from gpu_worker.exits import EXIT_ENGINE, end_process
from gpu_worker.fitness import Fitness
from gpu_worker.heartbeat import Heart
from gpu_worker.in_hand import InHand
from gpu_worker.orders import Orders
from gpu_worker.report import report
from gpu_worker.seat import Seat
from gpu_worker.settings import WorkerSettings
from gpu_worker.standing import NotNowError, Standing
from gpu_worker.telemetry import Telemetry

logger = logging.getLogger(__name__)

UNLOAD_LIMIT_S = 30.0  # for an engine's step to end
LOOK_S = 0.1


class Runtime:
    """One session of a worker. `start` loads the engine and returns when it is ready; `stop` gives everything back.

    `main_pid` is the process that Celery's signals go to; with a prefork pool that is not this one.
    """

    def __init__(
        self,
        store: Store,
        settings: WorkerSettings,
        session_id: str,
        main_pid: int,
        telemetry: Telemetry,
        load_engine: Callable[[WorkerSettings], Engine],
    ) -> None:
        self.store = store
        self.settings = settings
        self.session_id = session_id
        self.worker = settings.worker_name
        self.in_hand = InHand()
        self._telemetry = telemetry
        self._load_engine = load_engine
        self.seat = Seat(settings.checkpoint_tokens, self._on_engine_death)
        self.standing = Standing()
        self.started_s = time.monotonic()
        self.fitness = Fitness(settings.failure_limit, settings.poison_pause, self.standing, self.in_hand, self._tell)
        orders = Orders(main_pid, self.standing, self.seat, self.in_hand, store.queries, self.drain)
        self._pulse = store.pulse(session_id, self.worker)
        self._heart = Heart(self._pulse, store.settings.heartbeat_interval, self._report, orders.follow)

    @property
    def loop(self) -> EngineLoop:
        """The running engine's, for a batch that may run."""
        loop = self.seat.loop
        assert loop is not None, "no batch runs while there is no engine at work"
        return loop

    @property
    def is_ready(self) -> bool:
        """Whether an engine is loaded and warm, and nobody works on it."""
        return self.seat.loop is not None

    def start(self) -> None:
        """Load and warm the engine while already beating, then be ready."""
        self._heart.start()
        self.load(self.settings)
        self.standing.ready()
        self._heart.beat_now()

    def load(self, settings: WorkerSettings) -> None:
        """Load and warm an engine, and let it work. No other one may be there.

        Raises:
            StokerError: it cannot be loaded, or does not generate.
        """
        with heard_by(self.explain):
            engine = self._load_engine(settings)
            self.explain("warming up")
            try:
                engine.warm_up()
            except BaseException:
                engine.close()
                raise
        self.settings = settings
        self.seat.put(engine)

    def unload(self) -> None:
        """Let the engine go, and its memory; nothing may be in hand. The process ends where that cannot be."""
        if not self.seat.clear(UNLOAD_LIMIT_S):
            end_process(EXIT_ENGINE, f"the engine does not stop within {UNLOAD_LIMIT_S:g} s")

    def leave_service(self, state: WorkerState, note: Callable[[str], None], *, finish: bool) -> None:
        """Be in a state in which no work comes; returns when none is in hand, all of it given back or finished.

        Nothing is lost or blamed: what has begun goes on elsewhere from its tokens so far.

        Raises:
            NotNowError: the worker is not in service, or comes to its end meanwhile.
            BrokerError: Redis refuses to take something back; the worker is in service as before.
        """
        before = self.standing.leave(state, "", finish=finish)
        note("finishing what is in hand" if finish else "giving work back")
        try:
            self._give_all_back()
        except Exception as error:
            self.return_to_service(before, str(error))
            raise

    def return_to_service(self, state: WorkerState, reason: str = "") -> None:
        """Be ready, or asleep."""
        self.standing.come_back(state, reason)
        self._heart.beat_now()

    def explain(self, reason: str) -> None:
        """Let the heartbeat say how far an operation is."""
        self.standing.explain(reason)
        self._heart.beat_now()

    def drain(self) -> None:
        """Take no new batches; give back what is not finished within `drain_timeout`. Safe in a signal handler."""
        if self.standing.drain(self.settings.drain_timeout):
            self._heart.beat_now()
            call_later(self.settings.drain_timeout, self.in_hand.wake_all)

    def note_given_back(self, count: int) -> None:
        """So many requests that had not begun are pending again, for idle workers; the driver should know at once."""
        self.in_hand.note_given_back(count)
        self._heart.beat_now()

    def stop(self) -> None:
        """End the session cleanly: whatever it holds is pending again, without counting an attempt."""
        self.seat.clear(UNLOAD_LIMIT_S)
        self._heart.stop()
        self._telemetry.close()
        try:
            self._release_all()
            self.store.sessions.expire(self.session_id, Cause.STOPPED, "stopped")
        except BrokerError as error:
            # The lease runs out by itself; the driver then does the same.
            logger.warning("could not end the session: %s", error)
        self._pulse.close()  # not before: a silent session whose connection is closed is taken for dead
        self.store.close()

    def _give_all_back(self) -> None:
        self.in_hand.wake_all()
        # Until the ledger knows the new state, the driver may assign more.
        beat = self._heart.beat_now()
        self._until(lambda: self._heart.answered(beat, LOOK_S))
        self._until(lambda: self.in_hand.is_empty(LOOK_S))
        self._until(self._could_release_all)

    def _until(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            if self.standing.is_ending:
                raise NotNowError(f"the worker is {self.standing.state}")

    def _could_release_all(self) -> bool:
        """False while Redis is away."""
        try:
            self._release_all()
        except BrokerUnavailableError:
            time.sleep(LOOK_S)
            return False
        return True

    def _release_all(self) -> None:
        """Make what is assigned to this session pending again, without counting an attempt."""
        for batch in self.store.queries.batches(self.session_id):
            self.store.ledger.release_batch(batch, count_attempt=False)

    def _report(self) -> Heartbeat:
        view = self.seat.view()
        telemetry = self._telemetry.read(view.capacity, view.load) if view else self._telemetry.read()
        if self._telemetry.fault:
            self.fitness.set_aside(self._telemetry.fault)
        return report(self.settings, self.standing, view, telemetry, self.in_hand.given_back)

    def _tell(self) -> None:
        self._heart.beat_now()

    def _on_engine_death(self, error: BaseException) -> None:
        logger.error("the engine is lost", exc_info=error)
        end_process(EXIT_ENGINE, f"the engine is lost: {type(error).__name__}: {error}")
