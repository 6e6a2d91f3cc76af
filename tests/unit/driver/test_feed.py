import pytest

from broker.messages import Request, SamplingParams
from driver.feed import JobFeed


class FakeLedger:
    """Takes every run."""

    def __init__(self):
        self.taken = []

    def submit(self, job_id, model, requests, **options):
        self.taken += requests
        return len(self.taken)


def fed(**fields):
    """Two requests of the same kind, as they get into the ledger."""
    ledger = FakeLedger()
    params = SamplingParams(**fields.pop("params", {}))
    JobFeed(ledger, "job", "m").add_and_seal([Request(prompt="x", params=params, **fields)] * 2)
    return ledger.taken


def test_sampled_requests_that_stream_get_a_seed_each():
    one, other = fed(stream=True)
    assert one.params.seed is not None
    assert one.params.seed != other.params.seed


@pytest.mark.parametrize(
    "fields", [{}, {"stream": True, "params": {"temperature": 0}}, {"stream": True, "params": {"seed": 5}}]
)
def test_all_others_are_sent_as_they_are(fields):
    assert {item.params.seed for item in fed(**fields)} == {fields.get("params", {}).get("seed")}
