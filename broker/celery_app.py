"""Builds the Celery app. The settings answer known failures of Celery and Redis under long tasks; each says which."""

from typing import Any
from urllib.parse import parse_qsl, urlsplit

from celery import Celery
from kombu.entity import Queue

from broker.connection import TLS_PREFIX, tls_options
from broker.errors import ConfigurationError
from broker.keys import SessionKeys
from broker.settings import BrokerSettings
from broker.topology import GENERATE_BATCH, queue_name

# A dead Redis must be noticed; without these a publish can wait for ever (celery/celery#4556).
SOCKET_OPTIONS = {
    "socket_timeout": 10,
    "socket_connect_timeout": 5,
    "socket_keepalive": True,
    "health_check_interval": 10,
}


def create_app(settings: BrokerSettings, session: SessionKeys | None = None) -> Celery:
    """The Celery app for this broker; a worker gives its session's keys, so that its unacked messages are its own.

    Raises:
        ConfigurationError: the URL has an option that redis-py may know, and Celery does not; as `connect`.
    """
    _refuse_unknown_options(settings)
    # Without its options: kombu and Celery's results read those of TLS otherwise than redis-py, each in its own way,
    # and without any kombu does not even look at the server's certificate.
    url = urlsplit(settings.broker_url)._replace(query="", fragment="").geturl()
    app = Celery("stoker", broker=url, backend=url, set_as_current=False)
    app.conf.update(_config(settings, session))
    if tls := tls_options(settings):
        app.conf.update(broker_use_ssl=tls, redis_backend_use_ssl=tls)
    return app


def worker_queue(worker: str) -> Queue:
    """The worker's queue. Celery publishes to it by name, so a lost binding table does no harm (kombu#1063).

    What is taken from it is acknowledged by that: the ledger knows what was not begun, and no message needs to be kept.
    """
    name = queue_name(worker)
    return Queue(name, routing_key=name, no_ack=True)


def send_batch(app: Celery, worker: str, batch_id: str, job_id: str) -> None:
    """Wake a worker for a batch once more: `assign` has done so before. The message carries ids only."""
    app.send_task(
        GENERATE_BATCH,
        args=(batch_id, job_id),
        task_id=batch_id,
        queue=worker_queue(worker),
        ignore_result=True,
        retry=True,
        retry_policy={"max_retries": 3, "interval_start": 0.1, "interval_max": 0.5},
    )


def _refuse_unknown_options(settings: BrokerSettings) -> None:
    options = parse_qsl(urlsplit(settings.broker_url).query, keep_blank_values=True)
    if others := [name for name, _ in options if not name.startswith(TLS_PREFIX)]:
        raise ConfigurationError(
            f"broker_url={settings.masked_url!r}: of the options of a URL, Celery takes those of TLS only: leave out "
            f"{', '.join(others)}"
        )


def _config(settings: BrokerSettings, session: SessionKeys | None) -> dict[str, Any]:
    transport: dict[str, Any] = {**SOCKET_OPTIONS, "visibility_timeout": settings.visibility_timeout_s}
    if session is not None:
        # A shared book would let any worker restore another's running messages.
        transport |= {
            "unacked_key": session.unacked,
            "unacked_index_key": session.unacked_index,
            "unacked_mutex_key": session.unacked_mutex,
        }
    return {
        "accept_content": ["json"],
        "task_serializer": "json",
        "result_serializer": "json",
        "result_accept_content": ["json"],
        # The visibility timeout counts only if it is the same in all three places (celery#9339).
        "broker_transport_options": transport,
        "result_backend_transport_options": {"visibility_timeout": settings.visibility_timeout_s},
        "visibility_timeout": settings.visibility_timeout_s,
        "redis_socket_timeout": SOCKET_OPTIONS["socket_timeout"],
        "redis_socket_connect_timeout": SOCKET_OPTIONS["socket_connect_timeout"],
        "redis_socket_keepalive": True,
        "redis_backend_health_check_interval": SOCKET_OPTIONS["health_check_interval"],
        "result_expires": settings.result_ttl_s,
        "result_backend_always_retry": True,
        "result_backend_max_retries": 10,
        # Recovery goes by the ledger, so a message has done its part when its batch starts. Acked late, running tasks
        # would still be unacked when Redis goes away, and kombu 5.7 ends the worker when it cannot restore them.
        "task_acks_late": False,
        "task_track_started": False,
        "task_ignore_result": True,
        "task_store_errors_even_if_ignored": False,
        "task_create_missing_queues": True,
        "task_default_queue": "stoker",
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": True,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_hijack_root_logger": False,
        "worker_enable_remote_control": True,
        "worker_send_task_events": True,
        "event_queue_expires": 60,
        "control_queue_expires": 300,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_heartbeat": 0,
        "timezone": "UTC",
        "enable_utc": True,
    }
