"""The settings that suit the data source, for sessions of ours and of others."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pyspark
import pytest

from rocketcore.errors import ConfigError
from rocketcore.spark import recommended_settings, session
from rocketcore.spark.topic_stream import LONGEST_REST

VERSION = re.escape(pyspark.__version__)


@pytest.mark.parametrize(("row_bytes", "rows"), [(1, 65536), (100, 5242), (1024, 512), (1 << 19, 1), (5 << 20, 1)])
def test_record_batches_are_of_one_size(row_bytes: int, rows: int) -> None:
    assert recommended_settings(row_bytes)["spark.sql.execution.arrow.maxRecordsPerBatch"] == str(rows)


def test_rows_of_an_unknown_size_are_limited_by_bytes() -> None:
    settings = recommended_settings()
    assert settings["spark.sql.execution.arrow.maxBytesPerBatch"] == str(1 << 19)
    assert "spark.sql.execution.arrow.maxRecordsPerBatch" not in settings
    assert settings["spark.speculation"] == "false"
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"
    # Spark lets as much time pass between two looks as the source would: none is left to be spent in a trigger.
    assert settings["spark.sql.streaming.pollingDelay"] == f"{LONGEST_REST * 1000:.0f}ms"


def test_rows_have_bytes() -> None:
    with pytest.raises(ConfigError, match="row_bytes must be a whole number of at least 1, got 0"):
        recommended_settings(0)


def spark_folder(folder: Path, version: str | None) -> Path:
    (folder / "jars").mkdir(parents=True)
    if version is not None:
        (folder / "jars" / f"spark-core_2.13-{version}.jar").write_text("")
    return folder


@pytest.mark.parametrize(
    ("version", "said"), [("3.5.1", "is Spark 3.5.1"), ("4.0.0-amzn-1", "is Spark 4.0.0-amzn-1"), (None, "is no Spark")]
)
def test_another_spark_at_spark_home_is_passed_over_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str | None, said: str
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(spark_folder(tmp_path / "other", version)))
    session.use_installed_spark()
    assert os.environ["SPARK_HOME"] == str(Path(pyspark.__file__).parent)
    (record,) = caplog.records
    assert f"SPARK_HOME={tmp_path / 'other'} {said}, and PySpark {pyspark.__version__} is installed" in record.message
    session.use_installed_spark()
    assert len(caplog.records) == 1


def test_the_same_spark_at_spark_home_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home = str(spark_folder(tmp_path / "same", pyspark.__version__))
    monkeypatch.setenv("SPARK_HOME", home)
    session.use_installed_spark()
    assert os.environ["SPARK_HOME"] == home
    assert not caplog.records


def test_a_pyspark_without_its_java_side_names_spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=rf"SPARK_HOME=.*nowhere is no Spark.*: set SPARK_HOME to a Spark {VERSION}"):
        session.use_installed_spark()


def test_the_installed_spark_is_found_by_its_jar() -> None:
    assert session.spark_version(Path(pyspark.__file__).parent) == pyspark.__version__


def fake_python(path: Path, answer: str) -> str:
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("echo 3.9", r"is Python 3\.9, and this is 3\.\d+: unset it, or name a 3\.\d+"),
        ("exit 1", "it does not run; unset it, or name a Python"),
        (None, "No such file or directory; unset it, or name a Python"),
    ],
)
def test_an_interpreter_that_cannot_run_this_process_s_functions_is_named(
    tmp_path: Path, answer: str | None, said: str
) -> None:
    python = str(tmp_path / "python")
    if answer is not None:
        fake_python(tmp_path / "python", answer)
    with pytest.raises(ConfigError, match=f"PYSPARK_PYTHON={re.escape(python)}.*{said}"):
        session.check_python(python)


def test_an_interpreter_of_this_version_may_run_the_workers(tmp_path: Path) -> None:
    session.check_python(sys.executable)
    major, minor = sys.version_info[:2]
    session.check_python(fake_python(tmp_path / "python", f"echo {major}.{minor}"))
