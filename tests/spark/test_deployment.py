"""How rocketcore gets onto the nodes of a Spark cluster; docs/spark-cluster.md has the commands that run here.

Executors get an environment that has nothing of this checkout: neither its folder nor its packages.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import rocketcore as rmq
from rocketcore import LocalCluster
from tests.fixtures.standalone import ROOT, SparkCluster
from tests.spark import jobs

pytestmark = [pytest.mark.spark_cluster, pytest.mark.timeout(1200)]


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
    assert not done.returncode, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    return next(folder.glob("rocketcore-*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a node has: a virtual environment with the wheel and Arrow. PySpark comes with Spark itself."""
    folder = tmp_path_factory.mktemp("node") / "environment"
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", f"{wheel}[arrow]")
    return folder


@pytest.fixture(scope="module")
def archive(environment: Path) -> Path:
    path = environment.with_suffix(".tar.gz")
    run("tar", "-czf", path, "-C", environment, ".")
    return path


@pytest.fixture(scope="module")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """Workers that know nothing of this checkout."""
    running = SparkCluster(tmp_path_factory.mktemp("bare"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


def used(cluster: SparkCluster, namesrv: str, python: str, settings: dict[str, str], folder: Path) -> set[str]:
    """Write and read with executors that run ``python``; return where their rocketcore is."""
    topic = f"T-{os.urandom(6).hex()}"
    with rmq.Admin(namesrv) as admin:
        admin.create_topic(topic, queues=2)
    options = {"nameServer": namesrv, "topic": topic}
    driver = cluster.driver({"spark.executorEnv.PYTHONPATH": "", **settings}, {"PYSPARK_PYTHON": python}, folder)
    try:
        driver.run(jobs.write, options, range(5000))
        assert driver.run(jobs.read, options)["sum"] == sum(range(5000))
        return driver.run(jobs.homes)
    finally:
        driver.stop()


def test_a_wheel_on_every_node(bare_cluster: SparkCluster, cluster: LocalCluster, environment: Path) -> None:
    homes = used(bare_cluster, cluster.namesrv, str(environment / "bin" / "python"), {}, environment.parent)
    assert homes == {str(next(environment.glob("lib/python*/site-packages")) / "rocketcore")}


def test_a_packed_environment(
    bare_cluster: SparkCluster, cluster: LocalCluster, environment: Path, archive: Path
) -> None:
    """The driver has the environment under the same relative path."""
    settings = {"spark.archives": f"{archive}#environment"}
    homes = used(bare_cluster, cluster.namesrv, "./environment/bin/python", settings, environment.parent)
    assert len(homes) == 2
    assert all(Path(home).is_relative_to(bare_cluster.folder / "work") for home in homes)


def test_a_zip_of_the_package_cannot_be_imported(wheel: Path, tmp_path: Path) -> None:
    """Python loads compiled modules from files only; so ``--py-files`` is no way to hand out the package."""
    package = tmp_path / "rocketcore.zip"
    with zipfile.ZipFile(wheel) as built, zipfile.ZipFile(package, "w") as packed:
        for name in built.namelist():
            if name.endswith((".py", ".so")):
                packed.writestr(name, built.read(name))
    program = (
        f"import sys; sys.path.insert(0, {str(package)!r}); import rocketcore.spark.source as s; print(s.__file__)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode
    assert "No module named 'rocketcore._fast." in done.stderr
