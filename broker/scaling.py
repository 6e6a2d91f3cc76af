"""How many workers there should be: people's bounds, and the leader's decision, for all who can start and stop them."""

from broker import codec
from broker.bounds import bounds_problem
from broker.connection import RedisClient, broker_errors
from broker.errors import InvalidRequestError, MessageError
from broker.keys import Keys
from broker.ledger import NotLeaderError
from broker.records import ScaleMode, ScaleRecord
from broker.scripts import Scripts


class Scale:
    """The number of workers of one installation. Calls raise BrokerUnavailableError when Redis does not answer."""

    def __init__(self, client: RedisClient, keys: Keys, url: str) -> None:
        self._redis = client
        self._keys = keys
        self._url = url
        self._scripts = Scripts(client, url)

    def read(self) -> ScaleRecord:
        """What is set and decided now."""
        with broker_errors(self._url):
            fields = self._redis.hgetall(self._keys.scale)
        try:
            return codec.from_fields(ScaleRecord, fields)
        except MessageError:
            return ScaleRecord()  # as if nothing were set: it must not stop a driver

    def set_manual(self, workers: int) -> None:
        """Have so many workers.

        Raises:
            InvalidRequestError: the number cannot be.
        """
        self._set(ScaleMode.MANUAL, workers, workers)

    def set_auto(self, least: int, most: int) -> None:
        """Have as many workers as the work needs, within bounds.

        Raises:
            InvalidRequestError: the bounds cannot be.
        """
        self._set(ScaleMode.AUTO, least, most)

    def unset(self) -> None:
        """Take back what people have set: the driver's own settings count."""
        self._run_scale(ScaleMode.DRIVER, 0, 0)

    def want(self, token: str, record: ScaleRecord) -> None:
        """Publish a decision; the fields that people set are left alone.

        Raises:
            NotLeaderError: `token` does not hold the lead.
        """
        fields = {"bounds": record.bounds, "reason": record.reason, "problem": record.problem}
        flat = [part for item in fields.items() for part in item]
        keys = [self._keys.leader, self._keys.scale, self._keys.scale_wanted]
        if int(self._scripts.run("want", keys, [token, record.wanted, *flat])) < 0:
            raise NotLeaderError

    def _set(self, mode: ScaleMode, least: int, most: int) -> None:
        if problem := bounds_problem(least, most):
            raise InvalidRequestError(problem)
        self._run_scale(mode, least, most)

    def _run_scale(self, mode: ScaleMode, least: int, most: int) -> None:
        self._scripts.run("scale", [self._keys.scale, self._keys.wake], [str(mode), least, most])
