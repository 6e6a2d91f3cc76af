"""The packaged model, loaded once a session; its conversion is kept from one session to the next."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cache_dir():
    return Path(os.environ.get("STOKER_CACHE_DIR") or Path.home() / ".cache" / "stoker")


@pytest.fixture(scope="session")
def loaded_model(cache_dir):
    from gpu_worker.engine.loading import load_model

    return load_model("smollm2-135m", cache_dir=cache_dir, device="cpu")


@pytest.fixture(scope="session")
def second_model(cache_dir):
    """For a second engine: two loops on one model at once leave its plain forward pass wrong (transformers 5.24)."""
    from gpu_worker.engine.loading import load_model

    return load_model("smollm2-135m", cache_dir=cache_dir, device="cpu")
