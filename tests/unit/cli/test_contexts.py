"""Contexts: what verbs write to the file, what they leave, and which of two sources counts."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from rocketcore.cli.main import run
from rocketcore.cli.shell.contexts import ContextFile
from rocketcore.cli.shell.options import Settings
from rocketcore.errors import ConfigError

Rocket = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(click, "get_app_dir", lambda *_, **__: str(tmp_path / "rocket"))
    for name in ("NAMESRV", "CONTEXT", "ACCESS_KEY", "SECRET_KEY", "TLS"):
        monkeypatch.delenv(f"ROCKET_{name}", raising=False)
    return tmp_path / "rocket"


@pytest.fixture
def rocket(folder: Path, capsys: pytest.CaptureFixture[str]) -> Rocket:
    def call(*arguments: str) -> tuple[int, Any, str]:
        code = run([*arguments, "-o", "json"])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else None, err

    return call


def test_contexts_from_the_first_to_none(rocket: Rocket, folder: Path) -> None:
    assert rocket("context", "list") == (0, [], "")
    assert rocket("config", "path") == (0, {"path": str(folder / "config.toml"), "exists": False}, "")
    assert rocket("context", "show")[0] == 3
    account = ("--access-key", "me", "--secret-key-env", "S")
    code, added, _ = rocket("context", "add", "a", "--namesrv", "a:1,a:2", *account)
    assert (code, added["current"], added["namesrv"], added["secret"]) == (0, True, "a:1;a:2", "S")
    assert rocket("context", "add", 'ü "q"\\', "--namesrv", "b:1", "--tls")[1]["current"] is False
    assert [row["context"] for row in rocket("context", "list")[1]] == ["a", 'ü "q"\\']
    assert Settings().namesrv == "a:1;a:2"
    assert rocket("context", "use", 'ü "q"\\')[1]["before"] == "a"
    assert (Settings().namesrv, Settings().tls is not False) == ("b:1", True)
    assert rocket("context", "show")[1]["tls"] is True
    assert rocket("context", "remove", 'ü "q"\\', "--yes")[0] == 0
    assert (Settings().namesrv, ContextFile().names, ContextFile().current) == ("127.0.0.1:9876", ["a"], None)
    assert rocket("context", "remove", "a", "--yes")[0] == 0
    assert tomllib.loads((folder / "config.toml").read_text()) == {}


@pytest.mark.parametrize(
    ("arguments", "exit_code", "code"),
    [
        (["context", "add", "a", "--namesrv", "b:1"], 1, "CONTEXT_EXISTS"),
        (["context", "add", "b"], 2, "USAGE"),
        (["context", "add", "a\nb", "--namesrv", "b:1"], 2, "USAGE"),
        (["context", "add", "b", "--namesrv", "b:1", "--secret-key-env", "S"], 2, "USAGE"),
        (["context", "use", "b"], 3, "CONTEXT_NOT_EXIST"),
        (["context", "show", "b"], 3, "CONTEXT_NOT_EXIST"),
        (["context", "remove", "b", "--yes"], 3, "CONTEXT_NOT_EXIST"),
        (["context", "remove", "a"], 2, "USAGE"),
        (["topic", "list", "--context", "b"], 2, "USAGE"),
    ],
)
def test_what_is_refused(rocket: Rocket, folder: Path, arguments: list[str], exit_code: int, code: str) -> None:
    assert rocket("context", "add", "a", "--namesrv", "a:1")[0] == 0
    before = (folder / "config.toml").read_text()
    found, out, err = rocket(*arguments)
    assert (found, out, json.loads(err.splitlines()[-1])["error"]["code"]) == (exit_code, None, code)
    assert (folder / "config.toml").read_text() == before


def test_lines_of_others_stay(rocket: Rocket, folder: Path) -> None:
    folder.mkdir()
    file = folder / "config.toml"
    file.write_text(
        '# mine\ncurrent = "a" # now\n\n[contexts.a] # first\nnamesrv = "a:1"\n# of b\n[contexts.b]\nnamesrv = "b:1"\n'
    )
    assert rocket("context", "add", "c", "--namesrv", "c:1", "--use")[0] == 0
    assert rocket("context", "remove", "b", "--yes")[0] == 0
    assert file.read_text() == (
        'current = "c"\n# mine\n\n[contexts.a] # first\nnamesrv = "a:1"\n# of b\n\n[contexts.c]\nnamesrv = "c:1"\n'
    ).replace("# of b\n\n", "# of b\n")
    assert (folder / "config.toml.bak").exists()


def test_a_file_that_only_its_author_can_change_is_left(rocket: Rocket, folder: Path) -> None:
    folder.mkdir()
    file = folder / "config.toml"
    text = 'contexts = { a = { namesrv = "a:1" } }\n'
    file.write_text(text)
    assert Settings(context_option="a").namesrv == "a:1"
    code, _, err = rocket("context", "remove", "a", "--yes")
    assert (code, "edit it" in err) == (2, True)
    assert file.read_text() == text


def test_the_option_counts_before_variables(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    (folder / "config.toml").write_text(
        'current = "a"\n[contexts.a]\nnamesrv = "a:1"\naccess_key = "ann"\nsecret_key_env = "ANNS"\n'
        '[contexts.b]\nnamesrv = "b:1"\naccess_key = "bob"\nsecret_key_env = "BOBS"\n'
    )
    for name, value in (("NAMESRV", "v:1"), ("ACCESS_KEY", "var"), ("SECRET_KEY", "vars")):
        monkeypatch.setenv(f"ROCKET_{name}", value)
    monkeypatch.setenv("BOBS", "bobs")
    assert Settings().namesrv == "v:1"
    assert Settings().credentials == {"access_key": "var", "secret_key": "vars"}
    chosen = Settings(context_option="b")
    assert chosen.namesrv == "b:1"
    assert chosen.credentials == {"access_key": "bob", "secret_key": "bobs"}
    assert Settings(context_option="b", namesrv_option="o:1").namesrv == "o:1"
    with pytest.raises(ConfigError, match="no context 'c'"):
        _ = Settings(context_option="c").namesrv


def test_config_show_names_each_source_and_no_secret(
    rocket: Rocket, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rocket("context", "add", "a", "--namesrv", "a:1", "--access-key", "ann", "--secret-key-env", "ANNS")[0] == 0
    monkeypatch.setenv("ANNS", "hidden")
    monkeypatch.setenv("ROCKET_TLS_CA", "ca.pem")
    found = {row["setting"]: (row["value"], row["source"]) for row in rocket("config", "show", "--timeout", "9")[1]}
    assert found["context"] == ("a", "file")
    assert found["namesrv"] == ("a:1", "context a")
    assert found["tls_ca"] == ("ca.pem", "variable ROCKET_TLS_CA")
    assert found["secret_key"] == ("in variable ANNS", "context a")
    assert found["timeout"] == ("9.0", "option")
    monkeypatch.setenv("ROCKET_NAMESRV", "v:1")
    monkeypatch.setenv("ROCKET_SECRET_KEY", "hidden")
    found = {row["setting"]: (row["value"], row["source"]) for row in rocket("config", "show")[1]}
    assert found["namesrv"] == ("v:1", "variable ROCKET_NAMESRV")
    assert found["secret_key"] == ("set", "variable ROCKET_SECRET_KEY")
    assert "hidden" not in str(found)


@pytest.fixture
def closed(folder: Path) -> Path:
    """A file that nobody can read, root neither: as one in a folder of another user."""
    folder.mkdir()
    (folder / "config.toml").symlink_to("config.toml")
    return folder / "config.toml"


def test_a_file_of_somebody_else_is_passed_over_where_the_cluster_is_named(
    closed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(namesrv_option="a:1")
    assert (settings.namesrv, settings.tls, settings.credentials) == (
        "a:1",
        False,
        {"access_key": "", "secret_key": ""},
    )
    monkeypatch.setenv("ROCKET_NAMESRV", "b:1")
    assert Settings().namesrv == "b:1"
    assert run(["topic", "list", "--namesrv", "127.0.0.1:1", "--timeout", "0.2"]) == 5
    assert f"{closed} is passed over: Too many levels" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["topic", "list", "--context", "a", "--namesrv", "a:1"],
        ["context", "list"],
        ["context", "add", "a", "--namesrv", "a:1"],
        ["console", "--contexts", "--listen", "127.0.0.1:0"],
    ],
)
def test_a_file_of_somebody_else_is_an_error_where_it_is_asked_for(
    closed: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    said = capsys.readouterr().err
    assert f"{closed}: Too many levels of symbolic links; " in said
    assert "HOME" in said


def test_contexts_that_cannot_be_kept(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write_text("a file where the folder would be\n")
    assert run(["context", "add", "a", "--namesrv", "a:1"]) == 2
    assert f"cannot write {folder / 'config.toml'}: " in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(click, "get_app_dir", lambda *_, **__: "~/.config/rocket")  # nobody knows the home
    assert run(["context", "add", "a", "--namesrv", "a:1"]) == 2
    assert "no home folder for the contexts: set HOME or XDG_CONFIG_HOME" in capsys.readouterr().err
    assert not (tmp_path / "~").exists()
    assert Settings().namesrv == "127.0.0.1:9876"
