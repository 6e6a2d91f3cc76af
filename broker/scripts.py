"""Loads the Lua commands, one file each, and runs them; nobody else calls EVALSHA."""

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from broker.connection import RedisClient, broker_errors

COMMANDS = (
    "abandon",
    "assign",
    "beat",
    "cancel",
    "checkpoint",
    "claim",
    "close",
    "commit",
    "configure",
    "drain",
    "expire",
    "finish",
    "forget",
    "lead",
    "open_session",
    "publish",
    "quarantine",
    "recall",
    "release",
    "renew",
    "resign",
    "scale",
    "submit",
    "want",
    "watch",
)


class Scripts:
    """The Lua commands of `broker/lua`, bound to one Redis client."""

    def __init__(self, client: RedisClient, url: str) -> None:
        self._url = url
        folder = files("broker").joinpath("lua")
        self._scripts = {
            name: client.register_script(folder.joinpath(f"{name}.lua").read_text("utf-8")) for name in COMMANDS
        }

    def run(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run one command.

        Raises:
            BrokerUnavailableError: Redis does not answer or refuses.
        """
        with broker_errors(self._url):
            return self._scripts[name](keys=list(keys), args=list(args))
