"""The packaged model, loaded once a session; its conversion is kept from one session to the next."""

import os
from pathlib import Path

import pytest

from tests.support.transformers_serve import SERVE

LAYERS = 4


@pytest.fixture(scope="session")
def cache_dir():
    return Path(os.environ.get("STOKER_CACHE_DIR") or Path.home() / ".cache" / "stoker")


@pytest.fixture(scope="session")
def loaded_model(cache_dir):
    from gpu_worker.engine.loading import load_model

    return load_model("smollm2-135m", cache_dir=cache_dir, device="cpu")


@pytest.fixture(scope="session")
def small_folder(cache_dir, tmp_path_factory):
    """The packaged model's first layers as a plain folder: its texts are worse, and come four times as quickly."""
    from gpu_worker.engine.loading import load_model

    loaded = load_model("smollm2-135m", cache_dir=cache_dir, device="cpu")
    loaded.model.model.layers = loaded.model.model.layers[:LAYERS]
    loaded.model.config.num_hidden_layers = LAYERS
    loaded.model.config.layer_types = None
    folder = tmp_path_factory.mktemp("small") / "model"
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def small_model(small_folder):
    """For all that does not ask what the text says."""
    from gpu_worker.engine.loading import load_model

    return load_model(str(small_folder), cache_dir=small_folder, device="cpu")


@pytest.fixture(scope="session")
def second_model(small_folder):
    """For a second engine beside the first, so that what a test changes in its model concerns no other."""
    from gpu_worker.engine.loading import load_model

    return load_model(str(small_folder), cache_dir=small_folder, device="cpu")


@pytest.fixture(scope="session")
def transformers_server(small_folder):
    """The URL of a `transformers serve` with the small model; wait for it as an engine does."""
    from broker.ports import free_port
    from gpu_worker.engine.openai_process import ServerProcess, server_command

    port = free_port()
    server = ServerProcess(server_command(SERVE, model=str(small_folder), port=port))
    yield f"http://127.0.0.1:{port}"
    server.stop()


def pytest_addoption(parser):
    parser.addoption("--engine", help="run the conformance suite against this engine only; see docs/engines.md")
