"""Python imports this before a program: a process of the system under test gets the fault that `E2E_FAULT` names."""

import os

if FAULT := os.environ.get("E2E_FAULT"):
    import injected

    getattr(injected, FAULT)()
