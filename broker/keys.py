"""Every key of the ledger, named in one place; `docs/protocol.md` lists type, owner and end of each."""

import msgspec


class JobKeys(msgspec.Struct, frozen=True):
    """The keys of one job."""

    record: str
    requests: str
    costs: str
    attempts: str
    losses: str
    checkpoints: str
    pending: str
    assigned: str
    committed: str
    outputs: str
    deltas: str
    leaders: str
    digests: str
    followers: str
    answers: str
    answered: str

    def all(self) -> list[str]:
        """Every key of the job, for expiry."""
        return [getattr(self, name) for name in self.__struct_fields__]


class BatchKeys(msgspec.Struct, frozen=True):
    """The keys of one batch."""

    record: str
    requests: str


class SessionKeys(msgspec.Struct, frozen=True):
    """The keys of one worker session: its record, its batches, and Celery's private unacked book."""

    record: str
    batches: str
    unacked: str
    unacked_index: str
    unacked_mutex: str

    def transport(self) -> list[str]:
        """The keys that kombu writes for this session."""
        return [self.unacked, self.unacked_index, self.unacked_mutex]


class Keys:
    """Names every ledger key under one namespace."""

    def __init__(self, namespace: str) -> None:
        self._prefix = namespace
        self.jobs = f"{namespace}:jobs"
        self.waiting = f"{namespace}:waiting"
        self.waiting_changes = f"{namespace}:waiting:changes"
        self.stopping = f"{namespace}:stopping"
        self.closing = f"{namespace}:closing"
        self.load = f"{namespace}:load"
        self.policy = f"{namespace}:policy"
        self.cache = f"{namespace}:cache"
        self.cache_times = f"{namespace}:cache:times"
        self.sharing = f"{namespace}:sharing"
        self.sessions = f"{namespace}:sessions"
        self.wake = f"{namespace}:wake"
        self.urgent = f"{namespace}:urgent"
        self.quarantine = f"{namespace}:quarantine"
        self.quarantine_times = f"{namespace}:quarantine:times"
        self.leader = f"{namespace}:leader"
        self.leader_term = f"{namespace}:leader:term"
        self.scale = f"{namespace}:scale"
        self.scale_wanted = f"{namespace}:scale:wanted"

    def job(self, job_id: str) -> JobKeys:
        """The keys of one job."""
        base = f"{self._prefix}:job:{job_id}"
        parts = [name for name in JobKeys.__struct_fields__ if name != "record"]
        return JobKeys(base, *(f"{base}:{part}" for part in parts))

    def batch(self, batch_id: str) -> BatchKeys:
        """The keys of one batch."""
        base = f"{self._prefix}:batch:{batch_id}"
        return BatchKeys(base, f"{base}:requests")

    def session(self, session_id: str) -> SessionKeys:
        """The keys of one worker session."""
        base = f"{self._prefix}:session:{session_id}"
        parts = ("batches", "unacked", "unacked_index", "unacked_mutex")
        return SessionKeys(base, *(f"{base}:{part}" for part in parts))

    def transport_pattern(self) -> str:
        """Matches what kombu writes for any session."""
        return self.session("*").unacked + "*"

    def session_of_transport(self, key: str) -> str:
        """The session that a key of kombu belongs to."""
        return key.removeprefix(self.session("").record).partition(":")[0]

    def worker(self, name: str) -> str:
        """The key that says which session a worker name belongs to."""
        return f"{self._prefix}:worker:{name}"
