"""One fuzzing process: ``python -m tests.fuzz.engine target [libFuzzer options] [folders]``.

Started by ``tests.fuzz.run``, with the sanitized kernels and atheris' run-time library loaded before Python.
"""

from __future__ import annotations

import importlib
import logging
import sys

import atheris


def main() -> None:
    """Run libFuzzer on one target; never returns."""
    name, options = sys.argv[1], sys.argv[2:]
    with atheris.instrument_imports(include=["rocketcore"]):
        target = importlib.import_module(f"tests.fuzz.targets.{name}").TARGET
    # libFuzzer's merge starts this process again by the first argument.
    child = next((option.partition("=")[2] for option in options if option.startswith("--child=")), sys.argv[0])
    # Damage is what is tested, so that nobody has to read of it.
    logging.disable(logging.CRITICAL)
    atheris.Setup([child, *(option for option in options if not option.startswith("--child="))], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
