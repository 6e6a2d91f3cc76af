"""Where the answers of one batch go, successes and failures, and which of them are already there."""

import itertools
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from broker.errors import ConfigurationError
from broker.messages import Output
from driver.batch_file.existing import key_of
from driver.batch_file.items import BadLine, BatchLine
from driver.batch_file.output_file import OutputFile
from driver.batch_file.writing import bad_line_result, is_failure, result_line


class BatchOutput:
    """The output file of a batch and, where one is named, the file of its failures.

    A request or bad line with an answer in either file, failed or not, counts as done: `has` says so.
    Deleting the errors file makes the next run try the failures again. Not for several threads at once.

    Raises:
        ConfigurationError: two of the files are the same, one cannot be written to or is not batch output,
            or another run writes to it. No whole line in them has been changed.
    """

    def __init__(self, source: Path, output: Path, errors: Path | None = None) -> None:
        files = {"the input file": source, "the output file": output}
        if errors is not None:
            files["the errors file"] = errors
        _require_different(files)
        with ExitStack() as stack:
            self._output = stack.enter_context(OutputFile(output))
            self._errors = stack.enter_context(OutputFile(errors)) if errors is not None else self._output
            self._files = stack.pop_all()

    def has(self, item: BatchLine | BadLine) -> bool:
        """Whether an earlier run has answered this input line."""
        key = key_of(item)
        return key in self._output.existing.keys or key in self._errors.existing.keys

    @property
    def failed_before(self) -> int:
        """How many failures earlier runs left in the files."""
        own = self._errors.existing.failed if self._errors is not self._output else 0
        return self._output.existing.failed + own

    def add_output(self, line: BatchLine, output: Output, *, job_id: str, model_name: str, created: int) -> None:
        """Append the answer to a request; see `result_line`."""
        file = self._errors if is_failure(output) else self._output
        file.append(result_line(line, output, job_id=job_id, model_name=model_name, created=created))

    def add_bad_line(self, bad: BadLine) -> None:
        """Append the answer to a line that could not be run."""
        self._errors.append(bad_line_result(bad))

    def close(self) -> None:
        """Close both files."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _require_different(files: Mapping[str, Path]) -> None:
    for (name, path), (other_name, other) in itertools.combinations(files.items(), 2):
        if path.resolve() == other.resolve() or _is_same_existing_file(path, other):
            raise ConfigurationError(f"{name} and {other_name} are both {path}; name two files")


def _is_same_existing_file(path: Path, other: Path) -> bool:
    # Hard links, and names that differ only in case, are one file under two names.
    return path.exists() and other.exists() and path.samefile(other)
