"""The `stoker` command."""

from driver.cli.app import main

__all__ = ["main"]
