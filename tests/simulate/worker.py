"""A GPU with its row in the heartbeat table, as the driver sees it, and what it has in hand."""

import msgspec

from broker.records import Session
from broker.states import WorkerState
from tests.simulate.gpu import Gpu, Work
from tests.simulate.jobs import MODEL

MAX_RECALL_AGE_S = 5.0  # see broker/lua/beat.lua
CHECKPOINT_TOKENS = 32  # half of `checkpoint_tokens`, see gpu_worker/engine_loop.py
SETTLE_S = 2.0  # see gpu_worker/in_hand.py
FRESH_S = 1.5  # a row younger than this needs no age

Key = tuple[int, int]  # of a request: job and index


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver has asked for: so many requests back, at that time."""

    count: int
    at_s: float
    begun: bool = False  # those too that have begun


class SimulatedWorker:
    """In hand is what the ledger has assigned to it: on the way, in the GPU, or on the way back."""

    def __init__(self, number: int, gpu: Gpu, *, up: bool) -> None:
        self.gpu = gpu
        self.number = number
        self.life = 0
        self.up = up
        self.drains = False
        self.given_back = 0  # requests, as the leader has asked
        self.drains_since_s = 0.0
        self.in_hand: dict[Key, Work] = {}
        self.order: Order | None = None
        self._tokens = 0
        self._batches: dict[int, int] = {}  # batch: open requests
        self._isolated: set[int] = set()
        self._row: Session | None = None
        self._beat_s = 0.0
        self._beat: tuple[int, int, int] = (0, 0, 0)

    @property
    def session_id(self) -> str:
        """The life that it has now."""
        return f"{self.number}/{self.life}"

    def begin(self, now_s: float) -> None:
        """It opens a session."""
        self.up = True
        self.order = None
        self.report(now_s)

    def crash(self, now_s: float, checkpoint: int = CHECKPOINT_TOKENS) -> list[tuple[Work, int]]:
        """It loses everything; returns what it had in hand, and how many tokens of each were saved."""
        lost = [(work, self.gpu.generated(work, now_s) // checkpoint * checkpoint) for work in self.in_hand.values()]
        self.gpu.crash(now_s)
        self.up = False
        self.life += 1
        for work, _ in lost:
            self.drop(work)
        return lost

    def report(self, now_s: float) -> None:
        """A beat's first half: the row says what there is now."""
        self._beat_s = now_s
        self._beat = (int(self.gpu.done_by(now_s)), self.gpu.running, self.gpu.waiting)
        self._row = None

    def take_order(self, now_s: float) -> Order | None:
        """A beat's second half: what to give back."""
        order, self.order = self.order, None
        return order if order is not None and now_s - order.at_s <= MAX_RECALL_AGE_S else None

    def to_give_back(self, order: Order, now_s: float) -> list[Work]:
        """The last that would begin, or have begun here where that is wanted; no suspects, nor what came just now."""
        begun = [item for item in self.gpu.begun() if not item[1].generated] if order.begun else []
        line = [*begun, *self.gpu.not_begun()]
        found = [work for at_s, work in line if at_s <= now_s - SETTLE_S and not work.attempts]
        return found[-order.count :]

    def take(self, work: Work, *, isolated: bool) -> None:
        """The ledger assigns a request to it."""
        assert (work.job, work.index) not in self.in_hand, "a request is twice at a worker"
        self.in_hand[work.job, work.index] = work
        self._tokens += work.expected
        self._batches[work.batch] = self._batches.get(work.batch, 0) + 1
        if isolated:
            self._isolated.add(work.batch)
        self._row = None

    def has(self, work: Work) -> bool:
        """Whether it is this one that it has in hand."""
        return self.in_hand.get((work.job, work.index)) is work

    def drop(self, work: Work) -> None:
        """A request is done, or not its own any more."""
        del self.in_hand[work.job, work.index]
        self._tokens -= work.expected
        self._batches[work.batch] -= 1
        if not self._batches[work.batch]:
            del self._batches[work.batch]
            self._isolated.discard(work.batch)
        self._row = None

    def leave(self, now_s: float) -> None:
        """It is asked to drain; its row says so at once."""
        self.drains = True
        self.drains_since_s = now_s
        self._row = None

    def session(self, now_s: float) -> Session:
        """Its row."""
        if self._row is None:
            self._row = self._session()
        age_s = now_s - self._beat_s
        return self._row if age_s < FRESH_S else msgspec.structs.replace(self._row, beat_age_s=age_s)

    def _session(self) -> Session:
        tokens, running, waiting = self._beat
        return Session(
            id=self.session_id,
            worker=f"gpu{self.number:04}",
            epoch=1,
            state=WorkerState.READY,
            drain=int(self.drains),
            model=MODEL,
            slots=self.gpu.slots,
            kv_tokens=self.gpu.kv_tokens,
            max_batches=64,
            inhand_requests=len(self.in_hand),
            inhand_tokens=self._tokens,
            batches=len(self._batches),
            isolated=len(self._isolated),
            running=running,
            waiting=waiting,
            generated_tokens=tokens,
            given_back=self.given_back,
            beat_ms=int(self._beat_s * 1000),
        )
