"""The sanitizer build: the kernels with ASAN and UBSAN, in ``build/sanitized``, beside the ones in use.

The Cython directives are those of the release, bounds checks off: they guard no pointer, and would only turn what the
sanitizers are here to find into an IndexError. clang adds coverage counters, which guide the fuzzer through the C code;
without clang gcc builds for ``tests.fuzz.sanitize`` alone.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "sanitized"
KERNELS = FOLDER / "lib" / "rocketcore" / "_fast"
SANITIZED = os.environ.get("ROCKETCORE_KERNELS") == str(KERNELS)
"""Whether this process, and those that it starts, run on that build. Their allocator is ASAN's: it keeps what is freed
aside, 256 MiB of it, and surrounds what is in use, so that the memory of the process says nothing about the code's.
"""

PLANTED = """
import ctypes
from rocketcore._fast import properties
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
block = libc.malloc(16)
ctypes.memset(block, 65, 16)
properties.decode_text((ctypes.c_char * 17).from_address(block))
"""
"""Makes a kernel read one byte past a block."""


def build() -> None:
    """Compile what has changed, then check that the build notices a read past a block."""
    clang = shutil.which("clang")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(
            [
                sys.executable,
                "setup.py",
                "-q",
                "build_ext",
                "--build-lib",
                FOLDER / "lib",
                "--build-temp",
                FOLDER / "temp",
            ],
            cwd=ROOT,
            env={**os.environ, "CC": clang or "gcc", "ROCKETCORE_SANITIZE": "fuzzer" if clang else "1"},
            check=True,
        )
    child = subprocess.run(
        [sys.executable, "-c", PLANTED],
        cwd=ROOT,
        env=environment(runtime()),
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "heap-buffer-overflow" not in child.stderr:
        raise SystemExit(f"the sanitizers do not see a planted read past a block:\n{child.stderr}")


def runtime() -> list[str]:
    """Return the compiler's own sanitizer libraries, which the interpreter has to load first."""
    clang = shutil.which("clang")
    names = ["libclang_rt.asan-x86_64.so"] if clang else ["libasan.so", "libubsan.so"]
    return [_output(clang or "gcc", f"-print-file-name={name}") for name in names]


def fuzzer_runtime() -> list[str]:
    """Return atheris' build of the same library with libFuzzer in it."""
    spec = importlib.util.find_spec("atheris")
    if spec is None or spec.origin is None:
        raise SystemExit("fuzzing needs atheris: pip install rocketcore[fuzz]")
    if shutil.which("clang") is None:
        raise SystemExit("fuzzing needs clang, which counts the coverage of C code")
    return [str(Path(spec.origin).parents[1] / "asan_with_fuzzer.so")]


def environment(libraries: list[str]) -> dict[str, str]:
    """Return the variables under which Python runs on the sanitized kernels.

    ``PYTHONMALLOC=malloc`` gives every object a block of its own, which ASAN surrounds. CPython itself frees little at
    exit, so leaks are not looked for. The symbolizer may not load the libraries: it hangs at its exit then.
    """
    symbolizer = FOLDER / "llvm-symbolizer"
    if not symbolizer.exists():
        symbolizer.write_text('#!/bin/sh\nunset LD_PRELOAD\nexec llvm-symbolizer "$@"\n')
        symbolizer.chmod(0o755)
    return {
        **os.environ,
        "LD_PRELOAD": ":".join(libraries),
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "fuzz" / "overlay"), str(ROOT)]),
        "ROCKETCORE_KERNELS": str(KERNELS),
        "ASAN_OPTIONS": f"detect_leaks=0:allocator_may_return_null=1:external_symbolizer_path={symbolizer}",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    build()
