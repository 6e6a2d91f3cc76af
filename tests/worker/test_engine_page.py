"""The engine that docs/engines.md shows is found by its entry point, and passes the conformance suite."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/engines.md").read_text("utf-8")


def block(language):
    return re.search(f"```{language}\n(.*?)```", PAGE, re.DOTALL)[1]


def test_the_example_fits_on_a_page():
    assert len(block("python").splitlines()) <= 40


def test_the_example_passes_the_conformance_suite_when_it_is_installed(tmp_path):
    (tmp_path / "my_package.py").write_text(block("python"))
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    entry = re.search(r'^(backwards) = "(.*)"$', block("toml"), re.MULTILINE)
    (info / "entry_points.txt").write_text(f"[stoker.engines]\n{entry[1]} = {entry[2]}\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/worker/test_engine_conformance.py"]
    done = subprocess.run(
        [*command, "--engine", "backwards"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert re.search(r"[4-9]\d passed|100%", done.stdout)
    assert " skipped" not in done.stdout
