"""Whether memory stays flat over many short requests, with the real model."""

from pathlib import Path

import typer

from gpu_worker.engine.fan_out import FanOut
from gpu_worker.engine.loading import load_model
from gpu_worker.engine.transformers import TransformersEngine
from tests.support.soak import Footprint, footprint, soak

VOCABULARY = 40_000


def measure_soak(count: int, model: str, cache_dir: Path) -> None:
    """Print what the process holds before, once settled, after all requests, and after the engine is closed."""
    loaded = load_model(model, cache_dir=cache_dir, device="cpu")
    first = FanOut(TransformersEngine(loaded.model, loaded.tokenizer))
    first.warm_up()
    first.close()
    _show("before", footprint())
    engine = FanOut(TransformersEngine(loaded.model, loaded.tokenizer))
    engine.warm_up()
    soaked = soak(engine, count, prompt_tokens=4, new_tokens=3, vocabulary=VOCABULARY)
    engine.close()
    _show("after 200 requests", soaked.settled)
    _show(f"after {count} requests", soaked.end)
    _show("closed", footprint())
    typer.echo(f"growth of memory after the first 200: {soaked.rss_growth:.2%} (goal: at most 5 %)")


def _show(when: str, held: Footprint) -> None:
    typer.echo(
        f"{when:22} {held.rss_bytes / 2**20:8.1f} MiB  {held.objects:7} objects"
        f"  {held.threads:3} threads  {held.handles:3} handles"
    )
