"""The extension list and the compiler flags; everything declarative is in pyproject.toml.

Switches (environment): ROCKETCORE_DEBUG=1 turns Cython's bounds checks on, ROCKETCORE_SANITIZE=1 adds ASAN and UBSAN,
=fuzzer libFuzzer's coverage too (clang), for the build beside this one that ``tests/fuzz/build.py`` makes,
ROCKETCORE_ANNOTATE=1 writes the annotated HTML beside each module, ROCKETCORE_NO_KERNELS=1 leaves the extensions out:
an editable install compiles them in a folder of its own each time, `build_ext --inplace` only what has changed.
ROCKETCORE_PORTABLE=1 builds what other systems than Linux can: the kernels of clients and name servers.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("ROCKETCORE_DEBUG") == "1"
SANITIZE = os.environ.get("ROCKETCORE_SANITIZE", "")
PORTABLE = os.environ.get("ROCKETCORE_PORTABLE", str(int(sys.platform != "linux"))) == "1"
NO_KERNELS = os.environ.get("ROCKETCORE_NO_KERNELS") == "1"
ANNOTATE = os.environ.get("ROCKETCORE_ANNOTATE") == "1"

FAST = Path("rocketcore/_fast")
# Epoll, eventfd and statfs, and kernels that read from maps of files through ``mapped``: what only servers use. Without
# them clients and name servers leave connections to the event loop; a broker says that it cannot start.
LINUX_ONLY = {
    "answers", "commit_log", "consume_queue", "flusher", "index", "mapped", "pulls", "reactor", "selection", "window",
}  # fmt: skip
KERNELS = [] if NO_KERNELS else sorted(FAST.glob("*.pyx"))
if not (KERNELS or NO_KERNELS):
    sys.exit(
        f"{FAST.absolute()} holds no *.pyx: without its kernels rocketcore neither sends nor serves. Build from a "
        "checkout or a complete sdist; ROCKETCORE_NO_KERNELS=1 leaves the kernels out on purpose."
    )
HEADERS = sorted(str(path) for path in (FAST / "include").glob("*.h"))

compile_args = ["-std=c11", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-unused-function"]
link_args: list[str] = []
if DEBUG:
    compile_args += ["-O0", "-g3", "-UNDEBUG"]
else:
    # Without debug information, which Python's own flags ask for and which would be three quarters of the wheel.
    compile_args += ["-O3", "-g0"]
if SANITIZE:
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g"]
    if SANITIZE == "fuzzer":
        sanitizers.append("-fsanitize=fuzzer-no-link")
    compile_args += sanitizers
    link_args += sanitizers

extensions = [
    Extension(
        f"rocketcore._fast.{path.stem}",
        [str(path)],
        include_dirs=[str(FAST / "include")],
        depends=HEADERS,
        extra_compile_args=compile_args,
        extra_link_args=link_args,
    )
    for path in KERNELS
    if path.stem not in LINUX_ONLY or not PORTABLE
]

setup(
    ext_modules=cythonize(
        extensions,
        annotate=ANNOTATE,
        build_dir="build/sanitized/cython" if SANITIZE else "build/cython",
        compiler_directives={
            "language_level": 3,
            "boundscheck": DEBUG,
            "wraparound": DEBUG,
            "initializedcheck": DEBUG,
            "cdivision": True,
            "embedsignature": True,
        },
    )
)
