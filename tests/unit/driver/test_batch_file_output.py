"""Output files: what a second run finds there, what a kill left behind, what must not be overwritten."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from broker.errors import ConfigurationError
from broker.messages import FinishReason, Output, failed_output
from driver.batch_file import BadLine, BatchLine, BatchOutput, OutputFile, read_batch

INPUT = b"""{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "1"}}
{"custom_id": "b", "url": "/v1/completions", "body": {"prompt": "2"}}
not json
{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "3"}}
{"custom_id": "c", "url": "/v1/completions", "body": {"prompt": "4"}}
"""


class Files:
    """An input file and the two output files of its runs."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "in.jsonl"
        self.output = folder / "out.jsonl"
        self.errors = folder / "errors.jsonl"
        self.source.write_bytes(INPUT)

    def items(self) -> list[BatchLine | BadLine]:
        return list(read_batch(io.BytesIO(self.source.read_bytes())))

    def run(self, limit: int = 100, *, errors: bool = False, fail: str = "b") -> list[int]:
        """Answer at most `limit` lines that have no answer yet; the numbers of those lines."""
        done: list[int] = []
        with BatchOutput(self.source, self.output, self.errors if errors else None) as output:
            for item in self.items():
                if len(done) < limit and not output.has(item):
                    answer(output, item, fail)
                    done.append(item.number)
        return done


def answer(output: BatchOutput, item: BatchLine | BadLine, fail: str = "") -> None:
    if isinstance(item, BadLine):
        output.add_bad_line(item)
        return
    result = Output(index=item.number, text="ok", finish_reason=FinishReason.STOP)
    if item.custom_id == fail:
        result = failed_output(item.number, "worker_crash", "gone")
    output.add_output(item, result, job_id="j", model_name="m", created=1)


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_every_input_line_has_one_output_line(files: Files):
    assert files.run() == [1, 2, 3, 4, 5]
    assert [line["custom_id"] for line in written(files.output)] == ["a", "b", None, "a", "c"]
    codes = [line["error"] and line["error"]["code"] for line in written(files.output)]
    assert codes == [None, "worker_crash", "invalid_json_line", "duplicate_custom_id", None]


@pytest.mark.parametrize("errors", [False, True])
@pytest.mark.parametrize("first", range(6))
def test_a_second_run_does_what_is_missing(files: Files, first: int, errors: bool):
    done = files.run(first, errors=errors)
    assert done + files.run(errors=errors) == [1, 2, 3, 4, 5]
    assert files.run(errors=errors) == []


def test_failures_go_to_the_errors_file(files: Files):
    files.run(errors=True)
    assert [line["custom_id"] for line in written(files.output)] == ["a", "c"]
    assert [line["custom_id"] for line in written(files.errors)] == ["b", None, "a"]


def test_failures_in_the_output_file_count_when_an_errors_file_is_named_later(files: Files):
    files.run()
    assert files.run(errors=True) == []


def test_without_the_errors_file_the_failures_are_tried_again(files: Files):
    files.run(errors=True)
    files.errors.unlink()
    assert files.run(errors=True, fail="") == [2, 3, 4]


def test_the_answer_to_a_duplicate_does_not_hide_the_request(files: Files):
    bad = files.items()[3]
    assert isinstance(bad, BadLine)
    assert bad.custom_id == "a"
    with BatchOutput(files.source, files.output) as output:
        output.add_bad_line(bad)
    assert files.run() == [1, 2, 3, 5]


def test_a_bad_line_that_was_mended_is_run(files: Files):
    files.source.write_bytes(INPUT.replace(b'"4"', b'""'))
    files.run()
    files.source.write_bytes(INPUT)
    assert files.run() == [5]


def test_it_counts_the_failures_of_earlier_runs(files: Files):
    for errors in (files.errors, None):
        files.run(errors=errors is not None)
        with BatchOutput(files.source, files.output, errors) as output:
            assert output.failed_before == 3
        files.output.unlink()


@pytest.mark.parametrize("lost", [1, 2, 60])
def test_a_torn_last_line_is_cut_off_and_done_again(files: Files, lost: int):
    files.run()
    whole = files.output.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    files.output.write_bytes(whole.removesuffix(last) + last[:-lost])
    # Without its newline alone a line is still whole.
    assert files.run() == ([] if lost == 1 else [5])
    assert files.output.read_bytes() == whole


def test_every_torn_prefix_of_a_first_line_is_repaired(tmp_path: Path):
    files = Files(tmp_path)
    files.run(1)
    line = files.output.read_bytes()
    for size in range(len(line)):
        files.output.write_bytes(line[:size])
        with OutputFile(files.output) as output:
            whole = size == len(line) - 1
            assert len(output.existing.keys) == whole
        assert files.output.read_bytes() == (line if whole else b"")


@pytest.mark.parametrize(
    "content",
    [
        INPUT,
        INPUT.splitlines()[0],  # no newline at the end: not to be taken for a torn line
        b"important\n",
        b"important",
        b"\0" * 100,
        b'{"id":"x"}\n',
        b'{"id":"x","custom_id":"a","response":null,"error":null}\n',
        b"[]\n",
    ],
)
def test_a_file_that_is_not_batch_output_is_left_alone(tmp_path: Path, content: bytes):
    path = tmp_path / "precious"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"precious, line 1, is not batch output"):
        OutputFile(path)
    assert path.read_bytes() == content


def test_a_foreign_line_after_good_ones_is_named(files: Files):
    files.run()
    content = files.output.read_bytes() + b'hello\n{"id":"batch_req_'
    files.output.write_bytes(content)
    with pytest.raises(ConfigurationError, match="line 6, is not batch output"):
        files.run()
    assert files.output.read_bytes() == content


def test_swapped_files_are_refused(files: Files):
    files.output.write_bytes(b"")
    with pytest.raises(ConfigurationError, match="swapped"):
        BatchOutput(files.output, files.source)
    assert files.source.read_bytes() == INPUT


def test_an_errors_file_that_is_not_batch_output_is_refused(files: Files):
    with pytest.raises(ConfigurationError, match="swapped"):
        BatchOutput(files.output, files.errors, files.source)
    BatchOutput(files.source, files.errors).close()  # the first file was let go


def test_one_file_cannot_be_two(files: Files):
    link, hard = files.source.with_name("link"), files.source.with_name("hard")
    link.symlink_to(files.source)
    hard.hardlink_to(files.source)
    for other in (files.source, link, hard, files.source.parent / "." / "in.jsonl"):
        with pytest.raises(ConfigurationError, match="the input file and the output file are both"):
            BatchOutput(files.source, other)
    with pytest.raises(ConfigurationError, match="the output file and the errors file are both"):
        BatchOutput(files.source, files.output, files.output)
    with pytest.raises(ConfigurationError, match="the input file and the errors file are both"):
        BatchOutput(files.source, files.output, files.source)
    assert not files.output.exists()


def test_two_runs_cannot_write_to_one_file(files: Files):
    with BatchOutput(files.source, files.output), pytest.raises(ConfigurationError, match="another run is writing"):
        BatchOutput(files.source, files.output)
    assert files.run() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", [".", "missing/out.jsonl"])
def test_a_path_that_cannot_be_written_is_named(tmp_path: Path, name: str):
    with pytest.raises(ConfigurationError, match="cannot write to"):
        OutputFile(tmp_path / name)


def test_a_pipe_is_only_written_to(tmp_path: Path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with OutputFile(path) as output:
        output.append(b"line\n")
        reader = os.open(path, os.O_RDONLY)
        try:
            assert os.read(reader, 100) == b"line\n"
        finally:
            os.close(reader)


def test_crlf_and_blank_lines_in_an_output_file_are_accepted(files: Files):
    files.run()
    files.output.write_bytes(files.output.read_bytes().replace(b"\n", b"\r\n\r\n"))
    assert files.run() == []
