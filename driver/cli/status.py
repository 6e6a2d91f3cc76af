"""`stoker status`: who is there, and what there is to do."""

import json
import os
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from broker.records import JobRecord, Load, Policy, Session, Sharing
from driver.cli.options import Broker
from driver.cli.terminal import short_client
from driver.client import Client

EXIT_OBSTACLE = 1
UNCUT_COLUMNS = 1_000
# Columns of the worker table: what the telemetry calls them, and their unit.
ENGINE_READINGS = (("tokens_per_s", ""), ("kv_used_percent", " %"), ("prefix_hit_percent", " %"))


def status(
    broker: Broker = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show driver, workers and open jobs. Exit code 1 when nothing could run now."""
    client = short_client(broker)
    has_driver, sessions, jobs = client.store.has_leader(), client.workers(), client.store.queries.open_jobs()
    obstacle = client.obstacle()
    if as_json:
        shown = _as_json(has_driver, sessions, jobs, obstacle) | _queue_as_json(client)
        typer.echo(json.dumps(shown, indent=2))
    else:
        _print(client, has_driver, sessions, jobs, obstacle)
    if obstacle:
        raise typer.Exit(EXIT_OBSTACLE)


def _as_json(has_driver: bool, sessions: list[Session], jobs: list[JobRecord], obstacle: str | None) -> dict[str, Any]:
    return {
        "driver": has_driver,
        "obstacle": obstacle,
        "workers": [{**msgspec.to_builtins(row), "telemetry": json.loads(row.telemetry)} for row in sessions],
        "jobs": [msgspec.to_builtins(job) for job in jobs],
    }


def _queue_as_json(client: Client) -> dict[str, Any]:
    queries = client.store.queries
    parts = {"queue": queries.load(), "policy": queries.policy(), "sharing": queries.sharing()}
    return {name: msgspec.to_builtins(part) for name, part in parts.items()}


def _print(
    client: Client, has_driver: bool, sessions: list[Session], jobs: list[JobRecord], obstacle: str | None
) -> None:
    console = _console()
    console.print(Text(f"broker  {client.store.settings.masked_url}"))
    console.print(f"driver  {'leads' if has_driver else 'none'}", highlight=False)
    queries = client.store.queries
    for line in queue_lines(queries.load(), queries.policy(), queries.sharing()):
        console.print(line, highlight=False)
    console.print(_worker_table(sessions) if sessions else "workers none")
    console.print(_job_table(jobs) if jobs else "jobs    none open")
    if obstacle:
        console.print(Text(f"note    {obstacle}", style="yellow"))


def _console() -> Console:
    """Of a file or pipe nobody knows the width: nothing is cut off there."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=UNCUT_COLUMNS)


def queue_lines(load: Load, policy: Policy, sharing: Sharing) -> list[str]:
    """What waits or runs, of how much at most; what was answered without being generated."""
    requests, tokens = (
        f"{count}{f' of {most}' if most else ''}"
        for count, most in ((load.requests, policy.max_pending_requests), (load.tokens, policy.max_pending_tokens))
    )
    lines = [f"queue   {requests} requests, {tokens} tokens"]
    if sharing.shared or sharing.cached or policy.result_cache_ttl:
        saved = f"saved   {sharing.saved_completion_tokens} tokens"
        lines.append(f"{saved}: {sharing.shared} requests shared, {sharing.cached} cached")
    if policy.result_cache_ttl:
        size = f"{sharing.cache_bytes / 2**20:.1f} of {policy.result_cache_mib} MiB"
        lines.append(f"cache   {sharing.cache_entries} outputs, {size}")
    return lines


def _worker_table(sessions: list[Session]) -> Table:
    headers = (
        "worker",
        "state",
        "model",
        "requests",
        "slots",
        "reads/writes",
        "tokens",
        "tokens/s",
        "kv",
        "prefix",
        "beat",
        "device",
    )
    table = Table(*headers, box=None)
    table.columns[0].no_wrap = True  # as other commands ask for it: in a narrow window the others give way
    for row in sessions:
        readings = json.loads(row.telemetry)
        state = f"{row.state}: {row.reason}" if row.reason else row.state
        _add_row(
            table,
            row.worker,
            state,
            row.model,
            str(row.inhand_requests),
            str(row.slots),
            _measured(row),
            str(row.generated_tokens),
            *(_reading(readings, name, unit) for name, unit in ENGINE_READINGS),
            f"{row.beat_age_s:.1f} s",
            _device(readings),
        )
    return table


def _add_row(table: Table, *cells: str) -> None:
    """Add cells as they are: in a plain string, brackets would be rich's markup."""
    table.add_row(*(Text(cell) for cell in cells))


def _measured(row: Session) -> str:
    """Tokens per second that the worker read and wrote when it started."""
    known = row.prefill_tokens_per_s or row.decode_tokens_per_s
    return f"{row.prefill_tokens_per_s:,.0f}/{row.decode_tokens_per_s:,.0f}" if known else ""


def _reading(readings: dict[str, Any], name: str, unit: str) -> str:
    return f"{readings[name]}{unit}" if name in readings else ""


def _device(readings: dict[str, Any]) -> str:
    """Every reading that has no column of its own; those of a GPU behind its name."""
    shown = {name: value for name, value in readings.items() if name not in dict(ENGINE_READINGS)}
    plain = [f"{name} {value}" for name, value in shown.items() if not isinstance(value, dict)]
    gpus = [f"{name}: {_device(value)}" for name, value in shown.items() if isinstance(value, dict)]
    return "; ".join([", ".join(plain), *gpus] if plain else gpus)


def _job_table(jobs: list[JobRecord]) -> Table:
    table = Table("job", "state", "model", "done", "failed", "of", "tokens", box=None)
    table.columns[0].no_wrap = True
    for job in jobs:
        _add_row(
            table,
            job.id,
            _job_state(job),
            job.model or "any",
            str(job.done),
            str(job.failed),
            str(job.submitted),
            str(job.completion_tokens),
        )
    return table


def _job_state(job: JobRecord) -> str:
    if job.cancelled:
        return "cancelled"
    return f"{job.state}: its client was lost" if job.client_lost else str(job.state)
