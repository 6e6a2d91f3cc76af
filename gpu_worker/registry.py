"""The engines that may be chosen by name: Stoker's own, and those that installed packages add as entry points.

Only names and references are read here: nothing is imported before an engine is made.
"""

from importlib.metadata import EntryPoint, entry_points

GROUP = "stoker.engines"

# Written as entry points are, so that they are there in a checkout that was never installed, too.
_BUILT_IN = {
    name: EntryPoint(name=name, value=f"gpu_worker.engine.catalog:make_{name}", group=GROUP)
    for name in ("transformers", "openai", "simulated")
}


def find_engine(name: str) -> EntryPoint | None:
    """The reference of an engine's factory, or None. Nobody else can take the name of one of our own."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    return next(iter(entry_points(group=GROUP, name=name)), None)


def engine_names() -> tuple[str, ...]:
    """All names that may be chosen: Stoker's own first."""
    added = {entry.name for entry in entry_points(group=GROUP)} - set(_BUILT_IN)
    return (*_BUILT_IN, *sorted(added))
