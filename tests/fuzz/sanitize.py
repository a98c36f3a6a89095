"""Run tests on the kernels with ASAN and UBSAN: ``python -m tests.fuzz.sanitize [pytest options]``.

Without options: all that needs neither sockets nor Java. The first report ends the run.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from tests.fuzz import build

DEFAULT = ("tests/unit", "tests/property", "tests/fuzz")


def main(arguments: Sequence[str]) -> int:
    build.build()
    options = ["-q", "-p", "no:cacheprovider", "--timeout", "1800", "-o", "faulthandler_timeout=0"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(arguments or DEFAULT)],
        cwd=build.ROOT,
        env=build.environment(build.runtime()),
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
