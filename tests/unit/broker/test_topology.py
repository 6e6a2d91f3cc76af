from broker.celery_app import create_app, worker_queue
from broker.keys import Keys
from broker.settings import BrokerSettings
from broker.topology import GENERATE_BATCH, queue_name


def test_the_names_on_the_wire_are_stable():
    assert GENERATE_BATCH == "stoker.generate_batch"
    assert queue_name("gpu0@host") == "gpu.gpu0@host"


def test_a_worker_has_a_queue_of_its_own():
    queue = worker_queue("gpu0@host")
    assert (queue.name, queue.routing_key) == ("gpu.gpu0@host", "gpu.gpu0@host")
    assert queue.no_ack, "the ledger knows what was not begun"


def test_the_visibility_timeout_is_the_same_in_all_three_places():
    conf = create_app(BrokerSettings(visibility_timeout_s=7200)).conf
    assert conf.broker_transport_options["visibility_timeout"] == 7200
    assert conf.result_backend_transport_options["visibility_timeout"] == 7200
    assert conf.visibility_timeout == 7200


def test_no_pickle():
    conf = create_app(BrokerSettings()).conf
    assert (conf.accept_content, conf.result_accept_content) == (["json"], ["json"])
    assert (conf.task_serializer, conf.result_serializer) == ("json", "json")


def test_a_workers_unacked_messages_are_its_sessions_own():
    session = Keys("a").session("x")
    options = create_app(BrokerSettings(), session).conf.broker_transport_options
    assert options["unacked_key"] == session.unacked
    assert options["unacked_index_key"] == session.unacked_index
    assert options["unacked_mutex_key"] == session.unacked_mutex
    assert "unacked_key" not in create_app(BrokerSettings()).conf.broker_transport_options
