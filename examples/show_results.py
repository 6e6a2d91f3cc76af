"""Prints the first results of a batch output file: `python examples/show_results.py output.jsonl [COUNT]`."""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

SHOWN = 5
WIDTH = 88


def main() -> None:
    """Print some results of the file that the command line names."""
    path = Path(sys.argv[1])
    shown = int(sys.argv[2]) if len(sys.argv) > 2 else SHOWN
    lines = path.read_text("utf-8").splitlines()
    for line in lines[:shown]:
        result = json.loads(line)
        print(f"\n{result['custom_id']}")
        print(textwrap.indent(textwrap.fill(answer(result), WIDTH), "  "))
    print(f"\n{len(lines)} results in {path}")


def answer(result: dict[str, Any]) -> str:
    """What a result line says: the generated text, or why there is none."""
    if result["error"] is not None:
        return f"[{result['error']['code']}] {result['error']['message']}"
    choice = result["response"]["body"]["choices"][0]
    text: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return text.strip()


if __name__ == "__main__":
    main()
