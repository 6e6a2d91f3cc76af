"""OpenAI's batch JSONL files, in and out: requests are read lazily, answers appended as they finish."""

from driver.batch_file.batch_output import BatchOutput
from driver.batch_file.items import BadLine, BatchLine, RequestKind
from driver.batch_file.output_file import OutputFile
from driver.batch_file.reading import read_batch
from driver.batch_file.writing import bad_line_result, is_failure, result_line

__all__ = [
    "BadLine",
    "BatchLine",
    "BatchOutput",
    "OutputFile",
    "RequestKind",
    "bad_line_result",
    "is_failure",
    "read_batch",
    "result_line",
]
