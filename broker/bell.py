"""Rung by whoever submits requests that rank before others that wait: a leader that rests hears it, and looks at once.

A message of Redis's, kept by nobody: one that is lost costs no more than the rest, as every submission wakes too.
"""

import logging
import time
from typing import Any

from broker.connection import RedisClient, broker_errors
from broker.errors import BrokerRefusedError
from broker.keys import Keys

logger = logging.getLogger(__name__)

MOST_READ = 1000  # messages; more are left behind with their connection, as reading them would hold up the leader


class Bell:
    """Listens by a connection of its own from the first call on, where Redis lets it; close it.

    Every call raises BrokerUnavailableError when Redis does not answer.
    """

    def __init__(self, client: RedisClient, keys: Keys, url: str) -> None:
        self._redis = client
        self._channel = keys.urgent
        self._url = url
        self._listener: Any = None
        self._is_deaf = False

    def forget(self) -> None:
        """Whatever it rang for so far will be seen."""
        for _ in range(MOST_READ):
            if not self._hears(0.0):
                return
        self.close()

    def wait(self, timeout_s: float) -> bool:
        """Wait for it to ring, at most so long. Whether it did, since it was last heard or forgotten."""
        end_s = time.monotonic() + timeout_s
        while (left_s := end_s - time.monotonic()) > 0:
            if self._hears(left_s):  # something else may have come, as an answer to a ping
                return True
        return False

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _hears(self, timeout_s: float) -> bool:
        if self._is_deaf:
            time.sleep(timeout_s)
            return False
        try:
            with broker_errors(self._url):
                return self._listening().get_message(timeout=timeout_s) is not None
        except BrokerRefusedError as error:
            logger.warning("urgent requests will wait for the driver's rests, of some ms: %s", error)
            self._is_deaf = True
            self.close()
            return False

    def _listening(self) -> Any:
        if self._listener is None:
            listener = self._redis.pubsub(ignore_subscribe_messages=True)
            listener.subscribe(self._channel)
            self._listener = listener
        return self._listener
