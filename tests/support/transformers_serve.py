"""The command that starts `transformers serve` in tests."""

import shlex
import sys
from pathlib import Path

_PROGRAM = shlex.quote(str(Path(sys.executable).with_name("transformers")))
# One thread: several wait for each other, and very long where the cores have other work.
SERVE = (
    f"env OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 {_PROGRAM} serve {{model}} --host 127.0.0.1 --port {{port}} --device cpu"
)
