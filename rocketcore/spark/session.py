"""A Spark session on this machine, set up the way the data source likes it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from rocketcore.errors import ConfigError
from rocketcore.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["local_session"]

_SETTINGS: Final = {
    # Few and large tasks: each costs some 30 ms, whatever it does.
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # JVM and Python workers over a unix socket: loopback TCP once stalled a job for good.
    "spark.python.unix.domain.socket.enabled": "true",
    # A speculative copy of a writing task would send its rows a second time.
    "spark.speculation": "false",
}


def local_session(
    name: str = "rocketcore", *, cores: int = 2, driver_memory: str = "1g", settings: dict[str, str] | None = None
) -> SparkSession:
    """Return the process's Spark session in local mode, starting it if there is none.

    Sets ``JAVA_HOME`` where no suitable Java is on the path, and makes Spark's workers run this interpreter.

    name, cores, driver_memory  of the session; ignored by Spark when the process has one already
    settings                    further Spark settings; they win over the ones made here
    raises                      ConfigError without pyspark or without a Java run-time
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError("Spark is not installed: pip install 'rocketcore[spark]'") from error
    os.environ["JAVA_HOME"] = str(find_java())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(f"local[{cores}]").appName(name).config("spark.driver.memory", driver_memory)
    for key, value in {**_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
