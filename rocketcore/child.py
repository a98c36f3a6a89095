"""``python -P rocketcore/child.py MODULE ARGUMENT…``: run a module as its main program, and end when the parent ends.

``-P`` keeps the working folder out of the module path: a ``queue.py`` there is the user's, and none of ours. As the
parent may have found rocketcore there, its folder is the last that the child looks into.

Standard input is a pipe whose other end only the parent has, so that it ends with the parent however that ends: by
``os._exit``, by SIGKILL, by a fault. Then this process gets a SIGTERM, and SIGKILL if that was not enough.

Linux's ``PR_SET_PDEATHSIG`` is no replacement: it follows the thread that started the process, not the parent.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import runpy
import signal
import sys
import threading
import time
from typing import Final

__all__ = ["command_line", "main"]

GRACE_SECONDS: Final = 20.0


def command_line(*arguments: str) -> list[str]:
    """Return the command of a server as a user starts it, ``rocket ARGUMENT…``, that ends with this process.

    Whoever starts it gives it a pipe as standard input, and a process group of its own: a Ctrl-C is for the parent,
    which ends its servers in order.
    """
    return [sys.executable, "-P", __file__, "rocketcore.cli.main", *arguments]


def main() -> None:
    """Run the module that the command line names."""
    threading.Thread(target=_end_with_parent, name="rocketcore-parent", daemon=True).start()
    del sys.argv[0]
    if importlib.util.find_spec("rocketcore") is None:
        sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _end_with_parent() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
