"""One way to reach Redis: bounded waits, keepalive, and errors in our own words.

redis-py takes twice as long to import as all that a client needs of Stoker, so it is loaded with the first connection.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from broker.errors import BrokerRefusedError, BrokerUnavailableError, ConfigurationError
from broker.settings import BrokerSettings, mask_url

# redis-py types a reply as the union of what every option could make of it; each reply is given its type where it
# is read.
RedisClient: TypeAlias = Any

CONNECT_TIMEOUT_S = 5
SOCKET_TIMEOUT_S = 10  # longer than any blocking read below
BLOCK_LIMIT_S = 2.0  # the longest that one blocking read waits
HURRY_S = 4.0  # to connect, and for an answer, where somebody waits at a terminal; longer than a blocking read, too
TLS_PREFIX = "ssl_"  # of the names of a URL's options
TLS_FILES = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
CERTIFICATE_REQUIREMENTS = ("none", "optional", "required")
PASSING_WORDS = ("OOM ", "MISCONF ", "NOREPLICAS ", "BUSY ", "LOADING ", "MASTERDOWN ", "UNBLOCKED ")


def connect(
    settings: BrokerSettings, on_connect: Callable[[], None] | None = None, *, hurry: bool = False
) -> RedisClient:
    """A client for this broker; it connects at its first command and again after a failure.

    `on_connect` is called for each connection that is made, before it carries a command.

    To a Redis that stands still each try waits for its whole time, and redis-py tries to connect anew within every try
    of a command: that takes a minute and a half. With `hurry` the first silence is the last.

    Raises:
        ConfigurationError: the URL has an option that redis-py does not know, or a wrong value of one; a file of TLS is
            not there.
    """
    import redis
    from redis.backoff import ExponentialBackoff
    from redis.retry import Retry

    # Two quick tries hide a blip; a longer outage is the caller's to wait for or report.
    blips: Any = (redis.ConnectionError,) if hurry else (redis.ConnectionError, redis.TimeoutError)
    try:
        client = redis.Redis.from_url(
            settings.broker_url,
            socket_timeout=HURRY_S if hurry else SOCKET_TIMEOUT_S,
            socket_connect_timeout=HURRY_S if hurry else CONNECT_TIMEOUT_S,
            socket_keepalive=True,
            health_check_interval=10,
            retry=Retry(ExponentialBackoff(cap=0.2, base=0.02), 2, blips),
            protocol=2,
            redis_connect_func=_announcing(on_connect) if on_connect else None,
        )
        pool: Any = client.connection_pool
        _refuse_wrong_tls(settings.broker_url, pool.connection_kwargs)
        pool.connection_class(**pool.connection_kwargs)  # only this looks at the options' names
    except (TypeError, ValueError) as error:
        reason = str(error).rpartition("() ")[2].rstrip(".")
        raise ConfigurationError(f"broker_url={settings.masked_url!r}: {reason}") from error
    return client


def tls_options(settings: BrokerSettings) -> dict[str, Any]:
    """What redis-py makes of the URL's options of TLS, for others who read a URL otherwise; nothing without TLS.

    Raises:
        ConfigurationError: as `connect`.
    """
    given: dict[str, Any] = connect(settings).connection_pool.connection_kwargs
    if urlsplit(settings.broker_url).scheme != "rediss":
        return {}
    options = {name: value for name, value in given.items() if name.startswith(TLS_PREFIX)}
    return {"ssl_cert_reqs": "required"} | options  # redis-py's own default


def _refuse_wrong_tls(url: str, options: dict[str, Any]) -> None:
    if urlsplit(url).scheme != "rediss" and (names := [name for name in options if name.startswith(TLS_PREFIX)]):
        raise ValueError(f"{names[0]} is for TLS: the URL must start with rediss://")
    requirement = options.get("ssl_cert_reqs", "required")
    if requirement not in CERTIFICATE_REQUIREMENTS:
        raise ValueError(f"ssl_cert_reqs={requirement} must be one of {', '.join(CERTIFICATE_REQUIREMENTS)}")
    for name in TLS_FILES:  # else it would read as a Redis that is away, and be waited for
        if name in options and not Path(options[name]).exists():
            raise ValueError(f"{name}={options[name]}: there is no such file")


def _announcing(on_connect: Callable[[], None]) -> Callable[[Any], None]:
    def prepare(connection: Any) -> None:
        connection.on_connect()  # what redis-py does by itself where nobody asks for more
        on_connect()

    return prepare


@contextmanager
def broker_errors(url: str) -> Generator[None]:
    """Raise redis-py's errors as our own, which name the URL: what may pass as an outage, the rest as refused."""
    from redis import exceptions

    # Refusals that end when somebody frees memory, a disk or a script, or when a new primary is there.
    passing = (
        exceptions.ReadOnlyError,
        exceptions.OutOfMemoryError,
        exceptions.ClusterDownError,
        exceptions.TryAgainError,
    )
    try:
        yield
    except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
        reason = str(error).rstrip(".")
        raise BrokerUnavailableError(f"Redis at {mask_url(url)} does not answer: {reason}") from error
    except exceptions.RedisError as error:
        if isinstance(error, passing) or str(error).startswith(PASSING_WORDS):
            raise BrokerUnavailableError(f"Redis at {mask_url(url)} cannot serve now: {error}") from error
        raise BrokerRefusedError(f"Redis at {mask_url(url)} refuses a command: {error}") from error
