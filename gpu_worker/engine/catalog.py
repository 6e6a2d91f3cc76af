"""Makes the engine that the settings name. torch is imported here at the earliest, after the device is pinned."""

import time
from inspect import getattr_static
from pathlib import Path
from typing import Any

import msgspec

from broker.errors import ConfigurationError, StokerError
from gpu_worker.engine.base import Engine
from gpu_worker.engine.fan_out import FanOut
from gpu_worker.engine.progress import report
from gpu_worker.engine.source import resolve
from gpu_worker.registry import engine_names, find_engine
from gpu_worker.settings import WorkerSettings

_PARTS = tuple(name for name in vars(Engine) if not name.startswith("_"))


def create_engine(settings: WorkerSettings) -> Engine:
    """Load the engine, which gives several texts of a request too; takes as long as the model takes to load.

    Raises:
        ConfigurationError: there is no such engine, it lacks a method, or the model cannot be found or read; says
            what to do.
    """
    engine = _factory(settings.engine)(settings)
    lacks = [name for name in _PARTS if getattr_static(engine, name, None) is None]
    if lacks:
        raise ConfigurationError(
            f"engine={settings.engine!r}: {type(engine).__name__} lacks {', '.join(lacks)};"
            " gpu_worker/engine/base.py says what an engine must have"
        )
    return FanOut(engine)


def _factory(name: str) -> Any:
    entry = find_engine(name)
    if entry is None:
        raise ConfigurationError(f"engine={name!r} must be one of {', '.join(engine_names())}")
    try:
        return entry.load()
    except StokerError:
        raise
    except Exception as error:  # another package's code, which may raise what it likes
        raise ConfigurationError(
            f"engine={name!r}: its entry point {entry.value} cannot be loaded: {type(error).__name__}: {error}"
        ) from error


def check_model(settings: WorkerSettings) -> None:
    """Look, as far as that is quick, whether the model of these settings can be there.

    Raises:
        ConfigurationError: it cannot; says what to do.
    """
    if settings.engine == "transformers":
        resolve(settings.model)


def make_transformers(settings: WorkerSettings) -> Engine:
    """A resident transformers model."""
    resolve(settings.model)  # who gave a wrong name need not wait until torch is imported
    from gpu_worker.engine.loading import LoadOptions, load_model
    from gpu_worker.engine.loop_options import default_options
    from gpu_worker.engine.transformers import TransformersEngine

    if settings.compile and "," in settings.device:
        raise ConfigurationError(f"compile=true is for one GPU, not for device={settings.device!r}")
    if settings.compile and not settings.device.startswith("cuda"):
        raise ConfigurationError("compile=true needs a GPU; on a CPU it did not start within minutes")
    # The supervisor has pinned the GPUs, so that they are the only ones that this process sees.
    device = "cuda:0" if settings.device.startswith("cuda") else "cpu"
    how = LoadOptions(
        revision=settings.revision,
        attention=settings.attention,
        trust_remote_code=settings.trust_remote_code,
        offline=settings.offline,
        gpus=settings.device.count(",") + 1,
    )
    loaded = load_model(
        settings.model,
        cache_dir=settings.cache_path,
        dtype=settings.dtype,
        device=device,
        how=how,
    )
    options = msgspec.structs.replace(
        default_options(loaded.model).resized(slots=settings.slots, kv_tokens=settings.kv_tokens),
        compiled=settings.compile,
        prefer_flash=settings.attention == "auto",
        # The paged KV cache of all layers would be on one GPU.
        padded="," in settings.device,
    )
    return TransformersEngine(loaded.model, loaded.tokenizer, options=options, measure_s=settings.warm_up_s)


def make_openai(settings: WorkerSettings) -> Engine:
    """A server on this machine, started here or given by its URL."""
    from gpu_worker.engine.openai_setup import open_openai

    return open_openai(settings)


def make_simulated(settings: WorkerSettings) -> Engine:
    """Made-up words."""
    from gpu_worker.engine.faults import fail_to_load
    from gpu_worker.engine.meter import Meter
    from gpu_worker.engine.simulated import SimulatedEngine, SimulatedOptions

    report("loading nothing, as slowly as told")
    time.sleep(settings.simulated_load_s)
    if settings.simulated_faults:
        fail_to_load(settings.model)
    options = SimulatedOptions(
        tokens_per_s=settings.simulated_tokens_per_s,
        prefill_tokens_per_s=settings.simulated_prefill_tokens_per_s,
        slots=settings.simulated_slots,
        memory_tokens=settings.simulated_memory_tokens,
        faults=settings.simulated_faults,
    )
    meter = Meter(Path(settings.simulated_meter)) if settings.simulated_meter else None
    return SimulatedEngine(options, meter=meter)
