"""What lives as long as a worker's session: the engine, the heartbeat, and the state that the driver sees."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable

from broker.errors import BrokerUnavailableError
from broker.messages import WorkerState
from broker.sessions import BeatReply, Heartbeat
from broker.store import Store
from gpu_worker.engine.base import Engine
from gpu_worker.engine_loop import EngineLoop
from gpu_worker.heartbeat import Heart
from gpu_worker.settings import WorkerSettings
from gpu_worker.telemetry import Telemetry

logger = logging.getLogger(__name__)

EXIT_CONFIGURATION = 78  # EX_CONFIG of sysexits.h: starting again would fail again
EXIT_FENCED = 75  # EX_TEMPFAIL: the session was declared dead; a new one may start
EXIT_ENGINE = 70  # EX_SOFTWARE: the engine is lost


class Runtime:
    """One session of a worker. `start` loads the engine and returns when it is ready; `stop` gives everything back."""

    def __init__(
        self,
        store: Store,
        settings: WorkerSettings,
        session_id: str,
        worker: str,
        telemetry: Telemetry,
        load_engine: Callable[[], Engine],
    ) -> None:
        self.store = store
        self.settings = settings
        self.session_id = session_id
        self.worker = worker
        self._telemetry = telemetry
        self._load_engine = load_engine
        self._engine: Engine | None = None
        self._loop: EngineLoop | None = None
        self._state = WorkerState.LOADING
        self._drain_until_s = float("inf")
        self._in_hand: set[str] = set()
        self._lock = threading.Lock()
        self._heart = Heart(
            store.sessions,
            session_id,
            worker,
            store.settings.heartbeat_interval,
            self._report,
            self._on_reply,
        )

    @property
    def loop(self) -> EngineLoop:
        """The running engine."""
        assert self._loop is not None, "no task runs before the engine is ready"
        return self._loop

    @property
    def is_ready(self) -> bool:
        """Whether the engine is loaded and warm."""
        return self._loop is not None

    @property
    def drain_is_over(self) -> bool:
        """Whether batches must be given back now."""
        return time.monotonic() >= self._drain_until_s

    def start(self) -> None:
        """Load and warm the engine while already beating, then be ready."""
        self._heart.start()
        engine = self._load_engine()
        engine.warm_up()
        self._engine = engine
        self._loop = EngineLoop(engine, self._on_engine_death)
        self._loop.start()
        if self._state is WorkerState.LOADING:
            self._state = WorkerState.READY
        self._heart.beat_now()

    def take(self, batch_id: str) -> bool:
        """Mark a batch as in hand; False when it is already: Celery delivers a running task again after a blip."""
        with self._lock:
            if batch_id in self._in_hand:
                return False
            self._in_hand.add(batch_id)
            return True

    def drop(self, batch_id: str) -> None:
        """Mark a batch as no longer in hand."""
        with self._lock:
            self._in_hand.discard(batch_id)

    def drain(self) -> None:
        """Take no new batches; give back what is not finished within `drain_timeout`. Safe in a signal handler."""
        if self._state is WorkerState.DRAINING:
            return
        self._state = WorkerState.DRAINING
        self._drain_until_s = time.monotonic() + self.settings.drain_timeout
        self._heart.beat_now()
        timer = threading.Timer(self.settings.drain_timeout, self.loop.interrupt)
        timer.daemon = True
        timer.start()

    def stop(self) -> None:
        """End the session cleanly: whatever it holds is pending again, without counting an attempt."""
        if self._loop is not None:
            self._loop.stop()
        self._heart.stop()
        try:
            for batch in self.store.ledger.batches(self.session_id):
                self.store.ledger.release(batch, count_attempt=False)
            self.store.sessions.expire(self.session_id, "stopped")
        except BrokerUnavailableError as error:
            # The lease runs out by itself; the driver then does the same.
            logger.warning("could not end the session: %s", error)
        self.store.close()

    def _report(self) -> Heartbeat:
        settings = self.settings
        beat = Heartbeat(state=self._state, model=settings.served_model, telemetry=self._telemetry.read())
        if self._engine is None:
            return beat
        capacity, load = self._engine.capacity, self._engine.load
        return Heartbeat(
            state=beat.state,
            model=beat.model,
            telemetry=beat.telemetry,
            max_batches=settings.concurrency,
            slots=capacity.slots,
            kv_tokens=capacity.kv_tokens,
            context_tokens=capacity.context_tokens,
            running=load.running,
            waiting=load.waiting,
            steps=load.steps,
            generated_tokens=load.generated_tokens,
        )

    def _on_reply(self, reply: BeatReply) -> None:
        if reply is BeatReply.FENCED:
            _die(EXIT_FENCED, "this session was declared dead; its work is elsewhere now")
        if reply is BeatReply.DRAIN and self._state is WorkerState.READY:
            logger.warning("asked to drain")
            os.kill(os.getpid(), signal.SIGTERM)

    def _on_engine_death(self, error: BaseException) -> None:
        logger.error("the engine is lost", exc_info=error)
        _die(EXIT_ENGINE, f"the engine is lost: {type(error).__name__}: {error}")


def _die(code: int, reason: str) -> None:
    """End the process at once: nothing that it still holds may be waited for."""
    logger.error("%s", reason)
    logging.shutdown()
    os._exit(code)
