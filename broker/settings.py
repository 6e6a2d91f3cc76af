"""The settings that every part of Stoker shares: where Redis is, and how long things live there."""

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from broker.environment import load, not_finite, refuse_wrong_types
from broker.errors import ConfigurationError

DEFAULT_PORT = 6397
DEFAULT_URL = f"redis://127.0.0.1:{DEFAULT_PORT}/0"
SCHEMES = ("redis", "rediss")
OPTION_TO_MASK = r"(?i)([?&][^=&]*(?:pass|secret|token)[^=&]*=)[^&#]*"


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where Redis is and how long things live there; durations are in seconds.

    Raises:
        ConfigurationError: lists every value that does not fit.
    """

    broker_url: str = DEFAULT_URL
    namespace: str = "stoker"  # first part of every ledger key
    result_ttl_s: int = 86_400  # how long a finished job can be read
    heartbeat_interval: float = 1.0
    heartbeat_timeout: float = 10.0
    max_attempts: int = 3  # deaths or engine failures of a request before it is given up
    max_losses: int = 3  # losses of whole workers with a request before one more counts as a death that it was part of
    visibility_timeout_s: int = 86_400  # Celery's backstop; recovery never waits for it

    def __post_init__(self) -> None:
        """Refuse values that cannot work together, all at once."""
        refuse_wrong_types(self)
        problems = not_finite(self)
        if wrong := _url_problem(self.broker_url):
            problems.append(f"broker_url={self.masked_url!r}: {wrong}")
        if self.heartbeat_interval <= 0 or self.heartbeat_timeout < 2 * self.heartbeat_interval:
            problems.append(
                f"heartbeat_timeout={self.heartbeat_timeout:g} must be at least twice "
                f"heartbeat_interval={self.heartbeat_interval:g}, and both above 0"
            )
        problems += [
            f"{name}={getattr(self, name)} must be at least 60"
            for name in ("result_ttl_s", "visibility_timeout_s")
            if getattr(self, name) < 60
        ]
        if self.max_attempts < 1:
            problems.append(f"max_attempts={self.max_attempts} must be at least 1")
        if self.max_losses < 0:
            problems.append(f"max_losses={self.max_losses} must not be negative")
        if not self.namespace or any(c.isspace() for c in self.namespace):
            problems.append(f"namespace={self.namespace!r} must be a word")
        if problems:
            raise ConfigurationError("; ".join(problems))

    @property
    def masked_url(self) -> str:
        """The broker's URL without its password, for people and logs."""
        return mask_url(self.broker_url)


def mask_url(url: str) -> str:
    """A URL with its password replaced by ***, wherever it stands; also one that is no proper URL."""
    url = re.sub(OPTION_TO_MASK, r"\1***", url)
    scheme, mark, rest = url.partition("://")
    if not mark or "@" not in _before_options(url, rest):
        return url
    user_info, _, place = rest.rpartition("@")
    user, colon, _ = user_info.partition(":")
    return f"{scheme}://{user}:***@{place}" if colon else url


def _before_options(url: str, rest: str) -> str:
    """What may hold user and password: all up to the options, or the whole of a URL that cannot be parsed."""
    return rest if _url_problem(url) else rest.partition("?")[0]


def _url_problem(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        reason = str(error)
        # Python quotes the port, which may be a piece of a password with a / in it.
        return f"no valid URL: {'the port is not a number' if 'cast' in reason else reason[0].lower() + reason[1:]}"
    if parts.scheme not in SCHEMES:
        return f"must start with {' or '.join(f'{scheme}://' for scheme in SCHEMES)}"
    if port == 0:
        return "no valid URL: port 0 cannot be reached"
    database = parts.path.removeprefix("/")  # what is no number, redis-py takes for 0 without a word
    return None if database.isdecimal() or not database else "no valid URL: the database behind the / is not a number"


def load_broker_settings(environ: Mapping[str, str] | None = None, **overrides: Any) -> BrokerSettings:
    """Broker settings from the environment (`STOKER_BROKER_URL`, …); keyword arguments win.

    Raises:
        ConfigurationError: an unknown `STOKER_*` variable, or a value that does not fit.
    """
    return load(BrokerSettings, os.environ if environ is None else environ, overrides)
