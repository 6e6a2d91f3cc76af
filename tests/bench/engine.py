"""How fast the engine is, against the same library used directly, with the real model in the same run."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
import typer

from broker.messages import Request, SamplingParams
from gpu_worker.engine.loading import load_model
from tests.bench.engine_feeds import Run, through_generate, through_the_engine, through_the_manager
from tests.bench.summary import Summary, summarise

ENGINE, MANAGER = "engine, four batches at once", "transformers' manager, all at once"
GOALS = {MANAGER: 0.98, "generate": 1.0}


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Greedy requests of mixed sizes; the greatest numbers of tokens."""

    requests: int = 64
    prompt_tokens: int = 96
    new_tokens: int = 48

    def make(self, seed: int = 7) -> list[Request]:
        """The requests; the same seed gives the same ones."""
        draw = random.Random(seed)
        return [self._request(draw) for _ in range(self.requests)]

    def _request(self, draw: random.Random) -> Request:
        length = draw.randint(1, self.prompt_tokens)
        ids = [draw.randint(100, 40_000) for _ in range(length)]
        new = draw.randint(max(1, self.new_tokens // 4), self.new_tokens)
        params = SamplingParams(max_tokens=new, temperature=0.0, ignore_eos=True)
        return Request(params=params, input_ids=tuple(ids))


def measure_engine(workload: Workload, rounds: int, sizes: Sequence[int], model: str, cache_dir: Path) -> None:
    """Print what each way of generating gives on the CPU, and on a GPU where there is one."""
    _measure_on("cpu", workload, rounds, sizes, model, cache_dir)
    if torch.cuda.is_available():
        _measure_on("cuda:0", workload, rounds, sizes, model, cache_dir)
    else:
        typer.echo("cuda: skipped, there is no CUDA device here")


def _measure_on(
    device: str, workload: Workload, rounds: int, sizes: Sequence[int], model: str, cache_dir: Path
) -> None:
    loaded = load_model(model, cache_dir=cache_dir, device=device)
    requests = workload.make()
    typer.echo(
        f"{device}: {workload.requests} requests, {sum(r.params.max_tokens for r in requests)} tokens to generate"
    )
    trials = {size: through_generate(loaded, requests, size) for size in sizes}
    best = min(sizes, key=lambda size: trials[size].wall_s)
    for size, trial in trials.items():
        typer.echo(f"  generate in batches of {size}, once: {trial.count / trial.wall_s:.1f} tokens/s")
    static = f"generate, length-sorted batches of {best}"
    ways: dict[str, Callable[[], Run]] = {
        ENGINE: lambda: through_the_engine(loaded, requests),
        MANAGER: lambda: through_the_manager(loaded, requests),
        static: lambda: through_generate(loaded, requests, best),
    }
    _report(ways, _alternate(ways, rounds), static)


def _alternate(ways: dict[str, Callable[[], Run]], rounds: int) -> dict[str, list[Run]]:
    """Runs in turn, each round in another order: the machine's other load falls on all."""
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    names = list(ways)
    for place in range(rounds):
        turn = place % len(names)
        for name in (*names[turn:], *names[:turn]):
            runs[name].append(ways[name]())
    return runs


def _report(ways: dict[str, Any], runs: dict[str, list[Run]], static: str) -> None:
    for name in ways:
        wall = summarise([run.count / run.wall_s for run in runs[name]])
        cpu = summarise([run.count / run.cpu_s for run in runs[name]])
        typer.echo(f"  {name:44} {_spread(wall)} tokens/s, {_spread(cpu)} tokens/s of CPU (n={wall.count})")
    for name, goal in ((MANAGER, GOALS[MANAGER]), (static, GOALS["generate"])):
        typer.echo(f"  engine / {name}: {_ratio(runs, name)} (goal {goal})")
    same = {
        name: sum(a == b for a, b in zip(runs[ENGINE][0].tokens, runs[name][0].tokens, strict=True)) for name in ways
    }
    typer.echo(f"  requests with the engine's tokens: {', '.join(f'{name} {count}' for name, count in same.items())}")


def _ratio(runs: dict[str, list[Run]], name: str) -> str:
    """Of each round by itself, as the two were run right after one another."""
    pairs = list(zip(runs[ENGINE], runs[name], strict=True))
    wall = summarise([other.wall_s / mine.wall_s for mine, other in pairs])
    cpu = summarise([other.cpu_s / mine.cpu_s for mine, other in pairs])
    return f"{_spread(wall, 3)} by the clock, {_spread(cpu, 3)} by CPU"


def _spread(summary: Summary, digits: int = 1) -> str:
    return f"{summary.median:.{digits}f} ({summary.low:.{digits}f} to {summary.high:.{digits}f})"
