"""For scripts whose model stays loaded from round to round: one measurement for each line of standard input."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Item = dict[str, Any]  # {"prompt": text, "max_tokens": number}
Output = dict[str, Any]  # {"tokens": ids, "text": text}


def serve(generate: Callable[[list[Item]], list[Output]]) -> None:
    """Say `{}` when everything is warm; then answer each `{"work": file, "outputs": file}` with the seconds it took."""
    generate([{"prompt": f"warm {place}", "max_tokens": 4} for place in range(16)])
    _say({})
    for line in sys.stdin:
        files = json.loads(line)
        work = json.loads(Path(files["work"]).read_text())
        started_s = time.perf_counter()
        outputs = generate(work)
        seconds = time.perf_counter() - started_s
        Path(files["outputs"]).write_text(json.dumps(outputs))
        _say({"seconds": seconds})


def _say(answer: dict[str, float]) -> None:
    print(json.dumps(answer), flush=True)
