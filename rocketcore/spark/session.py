"""A Spark session on this machine, set up the way the data source likes it."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketcore.errors import ConfigError
from rocketcore.spark.java import find_java
from rocketcore.warning import warn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["local_session", "recommended_settings"]

logger = logging.getLogger(__name__)

_WRITTEN_BATCH_BYTES: Final = 1 << 19
"""Bytes of rows on their way to a Python worker, and of a record batch for the sink: half a body.

Both fit into the second-level cache of a core, which often has 1 MiB. Beside batches of 1 MiB the sink takes 2 % more
rows of 1 KiB a second, 1 % more of 100 B, and a process holds half as much; what does nothing with its rows gets 7 %
fewer of 1 KiB. Smaller ones cost Spark more than they bring.
"""

_MOST_ROWS: Final = 1 << 16

_LOCAL_SETTINGS: Final = {
    # Few and large tasks: each costs some 30 ms, whatever it does.
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def recommended_settings(row_bytes: int | None = None) -> dict[str, str]:
    """Return Spark settings that suit the source and the sink, for the builder of any session.

    row_bytes  length of a written row, about: body, keys, tags and properties; None: unknown, batches are then limited
               by bytes and by Spark's own number of rows
    raises     ConfigError for one below 1
    """
    if row_bytes is not None and (not isinstance(row_bytes, int) or row_bytes < 1):
        raise ConfigError(f"row_bytes must be a whole number of at least 1, got {row_bytes!r}")
    settings = {
        # JVM and Python workers over a unix socket: loopback TCP once stalled a job for good.
        "spark.python.unix.domain.socket.enabled": "true",
        # A speculative copy of a writing task would send its rows a second time.
        "spark.speculation": "false",
        # After a trigger without anything new; by default Spark asks a hundred times a second. The source would make it
        # wait as long (``topic_stream.LONGEST_REST``), within a trigger, which then seems to take that time.
        "spark.sql.streaming.pollingDelay": "500ms",
        # Spark's own limit is 10,000 rows: 10 MB of them at 1 KiB, which cost 1.8 µs of CPU each before the sink has
        # them, and 1.2 in batches of 1 MiB.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(_WRITTEN_BATCH_BYTES),
    }
    if row_bytes is not None:
        rows = min(_MOST_ROWS, max(1, _WRITTEN_BATCH_BYTES // row_bytes))
        settings["spark.sql.execution.arrow.maxRecordsPerBatch"] = str(rows)
    return settings


def local_session(
    name: str = "rocketcore", *, cores: int = 2, driver_memory: str = "1g", settings: dict[str, str] | None = None
) -> SparkSession:
    """Return the process's Spark session in local mode, starting it if there is none.

    Sets ``JAVA_HOME`` to the Java that ``find_java`` finds, and makes Spark's workers run this interpreter, unless
    ``PYSPARK_PYTHON`` names another. A ``SPARK_HOME`` of another Spark than the PySpark that is installed is set to
    that, with a warning. Workers import from the working folder only where this process does.

    name, cores, driver_memory  of the session; ignored by Spark when the process has one already
    settings                    further Spark settings; they win over the ones made here
    raises                      ConfigError without pyspark or without a Java run-time, and for a ``PYSPARK_PYTHON``
                                that cannot run this process's functions
    """
    use_installed_spark()
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(find_java())
    python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if "spark.pyspark.python" not in (settings or {}):
        check_python(python)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(f"local[{cores}]").appName(name).config("spark.driver.memory", driver_memory)
    for key, value in {**recommended_settings(), **_LOCAL_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    with _same_import_path():
        return builder.getOrCreate()


@contextlib.contextmanager
def _same_import_path() -> Iterator[None]:
    """Keep workers of a JVM that starts meanwhile from importing what is in the working folder, if this process would
    not: a ``csv.py`` there would be theirs, which Spark starts by ``python -m``.
    """
    if "PYTHONSAFEPATH" in os.environ or any(os.path.realpath(folder) == os.getcwd() for folder in sys.path):
        yield
        return
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]


def use_installed_spark() -> None:
    """Have ``SPARK_HOME`` lead to the Spark of the installed PySpark, whose Java side another Spark does not have.

    raises  ConfigError where there is no PySpark, or one that came without the Java side
    """
    try:
        import pyspark
    except ImportError as error:
        raise ConfigError("Spark is not installed: pip install 'rocketcore[spark]'") from error

    home, package, version = os.environ.get("SPARK_HOME"), Path(pyspark.__file__).parent, pyspark.__version__
    if not home or (found := spark_version(Path(home))) == version:
        return
    what = f"SPARK_HOME={home} is {f'Spark {found}' if found else 'no Spark'}, and PySpark {version} is installed"
    if spark_version(package) != version:
        raise ConfigError(f"{what}: set SPARK_HOME to a Spark {version}")
    warn(logger, "%s: its own Spark is used", what)
    os.environ["SPARK_HOME"] = str(package)


def spark_version(home: Path) -> str | None:
    """Return the version of the Spark in a folder, as its jar says; None where there is none."""
    names = (re.fullmatch(r"spark-core_[\d.]+-(.+)\.jar", path.name) for path in home.glob("jars/spark-core_*.jar"))
    return next((name[1] for name in names if name), None)


def check_python(python: str) -> None:
    """Raise ConfigError for an interpreter whose workers cannot run the functions of this process.

    Spark finds out when the first task runs, and says so in the middle of a Java stack trace.
    """
    if python == sys.executable:
        return
    mine = f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        asked = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        theirs = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        why = error.strerror if isinstance(error, OSError) else "it does not run"
        raise ConfigError(f"PYSPARK_PYTHON={python}: {why}; unset it, or name a Python {mine}") from error
    if theirs != mine:
        raise ConfigError(f"PYSPARK_PYTHON={python} is Python {theirs}, and this is {mine}: unset it, or name a {mine}")
