"""A worker that starts `transformers serve` and generates with it; the server is killed, and nothing is lost."""

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from driver import Request, SamplingParams
from tests.support.process import descendants
from tests.support.transformers_serve import SERVE
from tests.support.waiting import wait_until

pytest.importorskip("torch")

PROMPTS = ("The capital of France is", "1, 2, 3, 5, 8,")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with random weights and the packaged one's tokenizer: it is quick, and what it says does not matter."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from gpu_worker.engine.gguf import converted
    from gpu_worker.engine.source import resolve

    cache = Path(os.environ.get("STOKER_CACHE_DIR") or Path.home() / ".cache" / "stoker")
    packaged = resolve("smollm2-135m")
    tokenizer: Any = AutoTokenizer.from_pretrained(converted(packaged.path, packaged.name, cache))
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = AutoConfig.for_model(
        "llama", **sizes, num_key_value_heads=2, vocab_size=len(tokenizer), max_position_embeddings=4096
    )
    path = tmp_path_factory.mktemp("tiny") / "model"
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def server_pid(worker):
    """The process that serves: below the worker's guard, with the name of its program in its command line."""

    def found():
        for pid in descendants(worker.pid):
            try:
                words = psutil.Process(pid).cmdline()
            except psutil.NoSuchProcess:
                continue
            if "serve" in words and not any("openai_guard" in word for word in words):
                return pid
        return 0

    return wait_until(found, what="a server")


@pytest.mark.model
@pytest.mark.timeout(300)
def test_a_killed_server_loses_nothing_and_none_is_left(make_cluster, folder):
    settings = {
        "STOKER_ENGINE": "openai",
        "STOKER_MODEL": str(folder),
        "STOKER_SERVED_MODEL_NAME": "tiny",
        "STOKER_OPENAI_COMMAND": SERVE,
        "STOKER_DEVICE": "cpu",
        "STOKER_STALL_TIMEOUT": "60",
        "STOKER_MAX_ATTEMPTS": "5",
    }
    cluster = make_cluster(settings)
    cluster.start_driver()
    worker = cluster.start_worker("a")
    cluster.ready("a", timeout=120)
    asked = [
        Request(params=SamplingParams(max_tokens=30, temperature=0.0), prompt=PROMPTS[index % 2]) for index in range(4)
    ]
    job = cluster.client.submit(asked, model="tiny")
    cluster.busy("a", tokens=10)
    first = server_pid(worker)

    os.kill(first, signal.SIGKILL)

    outputs = job.get(timeout=200)
    assert "the server ended with signal 9" in worker.log
    assert [output.index for output in outputs] == list(range(4))
    assert all(output.error is None and output.usage.completion_tokens > 0 for output in outputs)
    for index, output in enumerate(outputs):
        assert output.text == outputs[index % 2].text, "greedy texts do not depend on when the server died"
    second = server_pid(worker)
    assert second != first
    below = descendants(worker.pid)
    cluster.end_worker("a")
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in below), what="the end of the server")
