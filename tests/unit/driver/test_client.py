import numpy
import pytest

from broker.errors import ConfigurationError, InvalidRequestError
from driver.client import Client
from driver.job_options import priority_number

# The client connects at its first command; what is refused before needs no server.


@pytest.fixture
def client():
    with Client("redis://127.0.0.1:1/0") as client:
        yield client


def test_one_string_is_not_a_list_of_prompts(client):
    with pytest.raises(InvalidRequestError, match=r"submit\(\[prompt\]\)"):
        client.submit("hello")


@pytest.mark.parametrize("deadline", [0, -1, float("nan"), float("inf"), 1e300, 10**400, "soon", True])
def test_a_deadline_that_is_no_time_is_refused(client, deadline):
    with pytest.raises(InvalidRequestError, match="deadline"):
        client.submit(["x"], deadline=deadline)


@pytest.mark.parametrize("priority", ["urgent", 1.5, None, True, 101, -101, 10**400])
def test_a_priority_that_is_no_name_or_whole_number_is_refused(client, priority):
    with pytest.raises(InvalidRequestError, match="priority"):
        client.submit(["x"], priority=priority)


def test_priorities_have_names():
    assert [priority_number(name) for name in ("high", "normal", "low", 7)] == [10, 0, -10, 7]


@pytest.mark.parametrize("user", [None, 5, b"m", "\ud800", "x" * 201])
def test_a_user_that_is_no_name_is_refused(client, user):
    with pytest.raises(InvalidRequestError, match="user"):
        client.submit(["x"], user=user)


@pytest.mark.parametrize("weight", [0, -1, 0.0009, 1001, float("nan"), "1", None, True])
def test_a_weight_that_is_none_is_refused(client, weight):
    with pytest.raises(InvalidRequestError, match="weight"):
        client.submit(["x"], weight=weight)


@pytest.mark.parametrize("model", [None, 5, b"m", "\ud800"])
def test_a_model_that_is_no_name_is_refused(client, model):
    with pytest.raises(InvalidRequestError, match="model"):
        client.submit(["x"], model=model)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"priority": -3, "deadline": 0.5, "model": "m"},
        {"deadline": 60},
        {"priority": "low", "user": "me", "weight": 2},
    ],
)
def test_an_open_job_takes_sensible_options(client, options):
    assert client.open_job(**options).submitted == 0


def test_a_wrong_url_is_refused_at_once():
    with pytest.raises(ConfigurationError, match="broker_url"):
        Client("http://host")


def test_a_timeout_without_anything_to_wait_for_is_refused(client):
    with pytest.raises(InvalidRequestError, match="block=True"):
        client.submit(["x"], timeout=5)
    with pytest.raises(InvalidRequestError, match="block=True"):
        client.open_job(block=False, timeout=5)
    assert client.open_job(timeout=5).submitted == 0


@pytest.mark.parametrize("prompts", [5, {"a"}, iter(["x"]), numpy.array([1])])
def test_prompts_that_are_no_list_are_refused(client, prompts):
    with pytest.raises(InvalidRequestError, match="prompts must be a list of prompts"):
        client.submit(prompts)


@pytest.mark.parametrize("params", [5, {"max_tokens": 3}])
def test_parameters_that_are_none_are_refused(client, params):
    with pytest.raises(InvalidRequestError, match="SamplingParams"):
        client.submit(["x"], params)


def test_what_cannot_be_encoded_is_refused_before_anything_is_sent(client):
    """The first runs of a long job would be in the ledger already."""
    with pytest.raises(InvalidRequestError, match=r"^prompts\[1\]: "):
        client.submit(["fine", numpy.str_("wrong")])
