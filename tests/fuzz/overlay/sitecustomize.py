"""Load the kernels from the folder that ROCKETCORE_KERNELS names, in this interpreter and in its children.

Python imports this module at start where its folder is on PYTHONPATH.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType

PACKAGE = "rocketcore._fast."


class KernelFinder:
    """Finds the extensions of ``rocketcore._fast`` in another folder than their package's."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(PACKAGE):
            return None
        file = os.path.join(self._folder, name.removeprefix(PACKAGE) + EXTENSION_SUFFIXES[0])
        if not os.path.exists(file):
            raise ModuleNotFoundError(f"no kernel {file}", name=name)
        return spec_from_file_location(name, file)


sys.meta_path.insert(0, KernelFinder(os.environ["ROCKETCORE_KERNELS"]))
