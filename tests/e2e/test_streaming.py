"""Text as it comes: bit by bit, every character once, whatever dies while it is generated."""

import os
import signal

import msgspec

from broker.chat import ChatMessage
from broker.messages import Request, SamplingParams
from tests.e2e.test_broker_outages import cut_connections
from tests.support.verdict import assert_each_done_once, requests, undisturbed
from tests.support.waiting import wait_until


def streaming(count, tokens, about="request"):
    """As `requests`, but with a seed, as the answers of requests that stream and have none are their own."""
    made = requests(count, tokens, about=about)
    seeded = [msgspec.structs.replace(item.params, seed=place) for place, item in enumerate(made)]
    return [msgspec.structs.replace(item, params=own, stream=True) for item, own in zip(made, seeded, strict=True)]


class Reader:
    """Reads a job's deltas, and checks each against what came before."""

    def __init__(self, job):
        self.texts = {}
        self.pieces = {}
        self.outputs = {}
        self._deltas = job.stream(60)

    def __next__(self):
        delta = next(self._deltas)
        assert delta.index not in self.outputs, "nothing comes behind the last"
        text = self.texts.get(delta.index, "")
        assert delta.offset == len(text), "every character once"
        self.texts[delta.index] = text + delta.text
        self.pieces[delta.index] = self.pieces.get(delta.index, 0) + bool(delta.text)
        if delta.output is not None:
            self.outputs[delta.index] = delta.output
            assert delta.output.text == self.texts[delta.index]
        return delta

    def __iter__(self):
        return self

    def read(self, characters):
        """Read until there is so much more text of the first request."""
        wanted = len(self.texts.get(0, "")) + characters
        while len(self.texts.get(0, "")) < wanted:
            next(self)
        assert 0 not in self.outputs, "text comes before the end"


def assert_streamed(cluster, job, reader, asked):
    """The rest comes, and all of it is right."""
    list(reader)
    assert sorted(reader.outputs) == list(range(len(asked)))
    assert [reader.texts[place] for place in range(len(asked))] == [item.text for item in undisturbed(asked)]
    assert_each_done_once(cluster, job, asked)


def test_text_comes_as_it_is_generated(cluster):
    asked = [*streaming(3, tokens=200), *requests(1, tokens=5, about="plain")]
    job = cluster.client.submit(asked)
    reader = Reader(job)

    reader.read(50)

    assert_streamed(cluster, job, reader, asked)
    assert all(reader.pieces[place] > 2 for place in range(3))
    assert reader.pieces[3] == 1
    late = Reader(job)
    list(late)
    assert late.texts == reader.texts


def test_a_worker_that_is_killed_costs_no_character_and_repeats_none(cluster):
    asked = streaming(3, tokens=300)
    job = cluster.client.submit(asked)
    reader = Reader(job)
    for _ in range(2):
        reader.read(300)
        busy = wait_until(lambda: next((row for row in cluster.client.workers() if row.running), None))
        os.kill(cluster.workers[busy.worker.removesuffix("@e2e")].child_pid, signal.SIGKILL)

    assert_streamed(cluster, job, reader, asked)


def test_cut_connections_cost_no_character(cluster):
    asked = streaming(4, tokens=200)
    job = cluster.client.submit(asked)
    reader = Reader(job)
    for _ in range(4):
        reader.read(150)
        cut_connections(cluster, at_least=4)

    assert_streamed(cluster, job, reader, asked)


def test_text_that_redis_will_not_have_fails_no_batch(cluster):
    asked = streaming(2, tokens=200)
    job = cluster.client.submit(asked)
    cluster.redis.set(cluster.store.keys.job(job.id).deltas, "no stream")

    outputs = job.get(60)

    assert [output.text for output in outputs] == [item.text for item in undisturbed(asked)]
    assert_each_done_once(cluster, job, asked)
    assert any("was not published" in worker.log for worker in cluster.workers.values())


def test_a_cancelled_job_ends_its_stream(cluster):
    asked = streaming(2, tokens=3000)
    job = cluster.client.submit(asked)
    reader = Reader(job)
    reader.read(100)

    job.cancel()

    list(reader)
    assert {place: item.error.code for place, item in reader.outputs.items()} == {0: "cancelled", 1: "cancelled"}
    assert len(reader.texts[0]) >= 100
    assert_each_done_once(cluster, job, asked, errors=dict.fromkeys(range(2), "cancelled"))


def test_generate_prints_the_text_as_it_comes(cluster):
    arguments = ("generate", "Count to a hundred.", "--max-tokens", "200")
    turn = ChatMessage(role="user", content=arguments[1])
    params = SamplingParams(max_tokens=200, temperature=0)
    whole = undisturbed([Request(params=params, messages=(turn,))])[0].text + "\n"

    run = cluster.start_stoker(*arguments, "--stream")
    seen = wait_until(lambda: run.log)

    assert run.is_running
    assert whole.startswith(seen)
    assert len(seen) < len(whole)
    assert run.wait() == 0
    assert run.log == whole


def test_generate_ends_a_stream_that_fails_with_one_line(cluster):
    run = cluster.stoker("generate", "<<fail>>", "--stream")

    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == "stoker: error: engine_error: it failed, as asked\n"


def test_a_request_alone_says_that_it_streams(cluster):
    params = SamplingParams(max_tokens=5, temperature=0)
    job = cluster.client.submit(["plain", Request(prompt="streams", params=params, stream=True)], params)
    reader = Reader(job)
    list(reader)
    assert all(output.error is None for output in reader.outputs.values())
