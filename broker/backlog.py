"""What waits in the ledger: of each job, how many requests and how long their answers may be. Changes nothing."""

from broker.connection import RedisClient, broker_errors
from broker.costs import read_costs
from broker.fronts import COUNTERS, own_answers
from broker.keys import Keys
from broker.records import Backlog, JobBacklog

COSTS_READ = 32  # of a job, to know the mean
JOBS_READ = 1_000  # the others are taken to be like them


class Backlogs:
    """Reads backlogs; raises BrokerUnavailableError when Redis does not answer."""

    def __init__(self, client: RedisClient, keys: Keys, url: str) -> None:
        self._redis = client
        self._keys = keys
        self._url = url

    def read(self) -> Backlog:
        """What waits now; of many jobs only the first are looked at. Three round trips."""
        with broker_errors(self._url):
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.zcard(self._keys.waiting)
            pipeline.zrange(self._keys.waiting, 0, JOBS_READ - 1)
            waiting, members = pipeline.execute()
            parts = [member.decode().partition(" ") for member in members]
            keys = [self._keys.job(job_id) for job_id, _, _ in parts]
            for key in keys:
                pipeline.zcard(key.pending)
                pipeline.zrange(key.pending, 0, COSTS_READ - 1)
                pipeline.hmget(key.record, COUNTERS)
            found = pipeline.execute() if keys else []
            for key, indices in zip(keys, found[1::3], strict=True):
                pipeline.hmget(key.costs, indices or [0])
            costs = pipeline.execute() if keys else []
        rows = zip(parts, found[::3], found[2::3], costs, strict=True)
        jobs = tuple(_backlog(model, requests, record, cost) for (_, _, model), requests, record, cost in rows)
        return Backlog(jobs=jobs, waiting=int(waiting))


def _backlog(model: str, requests: int, record: list[bytes | None], costs: list[bytes | None]) -> JobBacklog:
    known = [read_costs(cost)[0] for cost in costs if cost]
    answered, completion_tokens = own_answers(record)
    mean = sum(known) / len(known) if known else 0.0
    return JobBacklog(
        model=model, requests=requests, mean_cost=mean, answered=answered, completion_tokens=completion_tokens
    )
