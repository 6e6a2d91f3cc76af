"""What lives as long as a worker's session: the engine, the heartbeat, and the state that the driver sees."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable

from broker.errors import BrokerError, BrokerUnavailableError
from broker.records import BeatAnswer, BeatReply, Cause, Heartbeat
from broker.states import WorkerState
from broker.store import Store
from gpu_worker.engine.base import Capacity, Engine, Load
from gpu_worker.engine.progress import heard_by
from gpu_worker.engine_loop import EngineLoop
from gpu_worker.exits import EXIT_ENGINE, EXIT_FENCED, end_process
from gpu_worker.heartbeat import Heart
from gpu_worker.in_hand import InHand
from gpu_worker.seat import Seat
from gpu_worker.settings import WorkerSettings
from gpu_worker.standing import IN_SERVICE, NotNowError, Standing
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
        self._main_pid = main_pid
        self._telemetry = telemetry
        self._load_engine = load_engine
        self.seat = Seat(settings.checkpoint_tokens, self._on_engine_death)
        self.standing = Standing()
        self.started_s = time.monotonic()
        self._failed_in_row: set[tuple[str, int]] = set()
        self._heart = Heart(
            store.sessions, session_id, self.worker, store.settings.heartbeat_interval, self._report, self._on_answer
        )

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

    @property
    def takes_batches(self) -> bool:
        """Whether a batch that comes now may run; else it must be given back."""
        return self.standing.takes_batches

    @property
    def gives_back(self) -> bool:
        """Whether batches must be given back now: the engine is needed, a drain's time is over, or it is set aside."""
        return self.standing.gives_back

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
            _call_later(self.settings.drain_timeout, self.in_hand.wake_all)

    def note_success(self) -> None:
        """The engine has generated for a request."""
        self._failed_in_row.clear()

    def note_given_back(self, count: int) -> None:
        """So many requests that had not begun are pending again, for idle workers; the driver should know at once."""
        self.in_hand.note_given_back(count)
        self._heart.beat_now()

    def note_failure(self, job_id: str, index: int, message: str) -> None:
        """The engine has failed a request; after `failure_limit` different ones in a row the worker is set aside.

        The same one again says nothing new: the fault may be its own. A broken GPU fails everything at once, and so
        would drain the queue faster than its healthy neighbours. The process ends after `poison_pause`, and a fresh one
        may be well.
        """
        self._failed_in_row.add((job_id, index))
        failed = len(self._failed_in_row)
        if failed >= self.settings.failure_limit:
            self._set_aside(f"failed {failed} requests in a row, the last with: {message}")

    def _set_aside(self, reason: str) -> None:
        """Give back what is in hand, take nothing more, and end the process after `poison_pause`."""
        if not self.standing.set_aside(reason):
            return
        logger.error("set aside: %s", reason)
        self._heart.beat_now()
        self.in_hand.wake_all()
        _call_later(self.settings.poison_pause, lambda: end_process(EXIT_ENGINE, f"set aside: {reason}"))

    def stop(self) -> None:
        """End the session cleanly: whatever it holds is pending again, without counting an attempt."""
        self.seat.clear(UNLOAD_LIMIT_S)
        self._heart.stop()
        self._telemetry.close()
        try:
            for batch in self.store.queries.batches(self.session_id):
                self.store.ledger.release_batch(batch, count_attempt=False)
            self.store.sessions.expire(self.session_id, Cause.STOPPED, "stopped")
        except BrokerError as error:
            # The lease runs out by itself; the driver then does the same.
            logger.warning("could not end the session: %s", error)
        self.store.close()

    def _give_all_back(self) -> None:
        self.in_hand.wake_all()
        # Until the ledger knows the new state, the driver may assign more.
        beat = self._heart.beat_now()
        self._until(lambda: self._heart.answered(beat, LOOK_S))
        self._until(lambda: self.in_hand.is_empty(LOOK_S))
        self._until(self._release_all)

    def _until(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            if self.standing.is_ending:
                raise NotNowError(f"the worker is {self.standing.state}")

    def _release_all(self) -> bool:
        """Release what is assigned to this session. False while Redis is away."""
        try:
            for batch in self.store.queries.batches(self.session_id):
                self.store.ledger.release_batch(batch, count_attempt=False)
        except BrokerUnavailableError:
            time.sleep(LOOK_S)
            return False
        return True

    def _report(self) -> Heartbeat:
        settings, standing, view = self.settings, self.standing, self.seat.view()
        if view is None:
            telemetry = self._read_telemetry()
            return Heartbeat(
                state=standing.state, reason=standing.reason, model=settings.served_model, telemetry=telemetry
            )
        capacity, load = view.capacity, view.load
        telemetry = self._read_telemetry(capacity, load)
        return Heartbeat(
            state=standing.state,
            reason=standing.reason,
            model=settings.served_model,
            telemetry=telemetry,
            max_batches=settings.concurrency,
            slots=capacity.slots,
            kv_tokens=capacity.kv_tokens,
            context_tokens=capacity.context_tokens,
            prefill_tokens_per_s=capacity.prefill_tokens_per_s,
            decode_tokens_per_s=capacity.decode_tokens_per_s,
            running=load.running,
            waiting=load.waiting,
            steps=load.steps,
            generated_tokens=load.generated_tokens,
            given_back=self.in_hand.given_back,
        )

    def _read_telemetry(self, capacity: Capacity | None = None, load: Load | None = None) -> str:
        reading = self._telemetry.read(capacity, load)
        if self._telemetry.fault:
            self._set_aside(self._telemetry.fault)
        return reading

    def _on_answer(self, answer: BeatAnswer) -> None:
        if answer.reply is BeatReply.FENCED:
            end_process(EXIT_FENCED, "this session was declared dead; its work is elsewhere now")
        if answer.recalled:
            self._recall(answer.recalled)
        if answer.reply is BeatReply.DRAIN and self.standing.state in IN_SERVICE:
            logger.warning("asked to drain")
            self.drain()
            os.kill(self._main_pid, signal.SIGTERM)
        self._look_for_cancelled_jobs()

    def _recall(self, count: int) -> None:
        """Have requests given back that the engine has not begun: others have nothing to do."""
        loop = self.seat.loop
        found = self.in_hand.recall(loop.not_begun(), count) if loop is not None else 0
        logger.info("asked to give back %d requests that wait here; found %d", count, found)

    def _look_for_cancelled_jobs(self) -> None:
        job_ids = self.in_hand.job_ids()
        if job_ids:
            cancelled = zip(job_ids, self.store.queries.cancelled(job_ids), strict=True)
            self.in_hand.cancel_jobs({job_id for job_id, is_cancelled in cancelled if is_cancelled})

    def _on_engine_death(self, error: BaseException) -> None:
        logger.error("the engine is lost", exc_info=error)
        end_process(EXIT_ENGINE, f"the engine is lost: {type(error).__name__}: {error}")


def _call_later(seconds: float, call: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
