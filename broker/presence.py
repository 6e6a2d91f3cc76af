"""Who is still connected. When a process is killed its connections are closed, and Redis knows at once.

A connection is named by its server's run and its number there: after a restart or a failover the same numbers are other
connections, so a name from another run says nothing.
"""

import logging
import re
from collections.abc import Iterable
from typing import Any

from broker.clock import Clock
from broker.connection import RedisClient, broker_errors
from broker.errors import BrokerRefusedError

logger = logging.getLogger(__name__)

ASK_EVERY_S = 0.2
ASK_AT_MOST = 1_000  # connections in one call; Redis answers with a line for each
_NAME = re.compile(r"([^:]+):([1-9][0-9]{0,17})")
_CLIENT = re.compile(rb"^id=(\d+) ", re.MULTILINE)


def own_name(client: RedisClient, url: str) -> str:
    """The name of a client's connection, for a client that has only one; "" where Redis does not tell.

    Raises:
        BrokerUnavailableError: Redis does not answer.
    """
    try:
        run_id, number = _ask(client, url, "CLIENT", "ID")
    except BrokerRefusedError as error:
        logger.info("this worker's end will be noticed by its silence only: %s", error)
        return ""
    return f"{run_id}:{number}" if run_id else ""


def _ask(client: RedisClient, url: str, *command: str) -> tuple[str, Any]:
    """The server's run, and its answer, both by the same connection."""
    pipeline = client.pipeline(transaction=False)
    pipeline.info("server")
    pipeline.execute_command(*command)
    with broker_errors(url):
        # Raised here, each error still begins with the word that says whether it will pass.
        server, answer = pipeline.execute(raise_on_error=False)
        for reply in (server, answer):
            if isinstance(reply, Exception):
                raise reply
    return server.get("run_id", ""), answer


class Presence:
    """Asks Redis which connections are closed. Where it does not tell, that is said once and not asked again."""

    def __init__(self, client: RedisClient, url: str, clock: Clock) -> None:
        self._redis = client
        self._url = url
        self._clock = clock
        self._is_told = True
        self._ask_at_s = float("-inf")
        self._place = 0

    def closed(self, names: Iterable[str]) -> set[str]:
        """Those of these connections that are closed for certain.

        Asks about `ASK_AT_MOST` of them, and every `ASK_EVERY_S` at most; where there are more, the others have their
        turn at the next calls.

        Raises:
            BrokerUnavailableError: Redis does not answer.
        """
        if not self._is_told or self._clock.now_s() < self._ask_at_s:
            return set()
        # A name that Redis does not understand would have it refuse all.
        known = [match for name in names if (match := _NAME.fullmatch(name))]
        if not known:
            return set()
        self._ask_at_s = self._clock.now_s() + ASK_EVERY_S
        asked = self._turn(known)
        try:
            # As one word redis-py would take the answer apart, of which the numbers are enough.
            run_id, lines = _ask(self._redis, self._url, "CLIENT", "LIST", "ID", *(match[2] for match in asked))
        except BrokerRefusedError as error:
            self._is_told = False
            logger.warning("workers that are killed will be noticed by their silence only: %s", error)
            return set()
        open_now = {number.decode() for number in _CLIENT.findall(lines)}
        return {match[0] for match in asked if match[1] == run_id and match[2] not in open_now}

    def _turn(self, known: list[re.Match[str]]) -> list[re.Match[str]]:
        start = self._place % len(known)
        asked = [*known[start:], *known[:start]][:ASK_AT_MOST]
        self._place = start + len(asked)
        return asked
