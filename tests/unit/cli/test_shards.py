"""The settings of several brokers on one machine, and messages that none of them would serve."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketcore.broker.config import BrokerConfig
from rocketcore.broker.store.config import StoreConfig
from rocketcore.cli.main import run
from rocketcore.cli.servers.shards import check_reach, shards_of
from rocketcore.cli.shell.failures import CommandFailed
from rocketcore.errors import ConfigError

CONFIG = BrokerConfig(broker_name="here", listen_port=10911, namesrv_addr="n:9876", broker_cluster_name="c")


def stored(root: Path, log: Path | None = None) -> StoreConfig:
    return StoreConfig(store_path_root_dir=root, store_path_commit_log=log, file_reserved_time=5)


def put(folder: Path, data: bytes = b"\0\0\1\0\xda\xa3\x20\xa7") -> None:
    folder.mkdir(parents=True)
    (folder / f"{0:020d}").write_bytes(data)


def test_shards_differ_in_name_folder_and_port_alone(tmp_path: Path) -> None:
    first, second = shards_of(CONFIG, stored(tmp_path), 2)
    assert (first.name, second.name) == ("here-0", "here-1")
    assert (first.config.listen_port, second.config.listen_port) == (10911, 10921)
    assert (first.store.root, second.store.root) == (tmp_path / "here-0", tmp_path / "here-1")
    assert second.store.commit_log_folder == tmp_path / "here-1" / "commitlog"
    assert (second.config.namesrv_addr, second.config.broker_cluster_name) == ("n:9876", "c")
    assert second.store.file_reserved_time == 5


def test_ports_of_metrics_are_beside_each_other_too(tmp_path: Path) -> None:
    def ports(port: int) -> list[int]:
        config = BrokerConfig(broker_name="here", metrics_port=port)
        return [shard.config.metrics_port for shard in shards_of(config, stored(tmp_path), 2)]

    assert (ports(5557), ports(0), ports(-1)) == ([5557, 5567], [0, 0], [-1, -1])


def test_logs_elsewhere_are_kept_apart(tmp_path: Path) -> None:
    """Two brokers that append to one log would end it."""
    log = tmp_path / "log"
    folders = [shard.store.commit_log_folder for shard in shards_of(CONFIG, stored(tmp_path, log), 2)]
    assert folders == [log / "here-0", log / "here-1"]


def test_free_ports_and_ports_that_there_are_not(tmp_path: Path) -> None:
    free = BrokerConfig(broker_name="here", listen_port=0)
    assert [shard.config.listen_port for shard in shards_of(free, stored(tmp_path), 3)] == [0, 0, 0]
    high = BrokerConfig(broker_name="here", listen_port=65530)
    with pytest.raises(ConfigError, match="2 brokers from port 65530 on, 10 apart, are beyond 65535"):
        shards_of(high, stored(tmp_path), 2)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_messages_of_more_shards_are_not_left_out(tmp_path: Path, elsewhere: bool) -> None:
    log = tmp_path / "log" if elsewhere else None
    store = stored(tmp_path / "store", log)
    check_reach(CONFIG, store, 1)
    for shard in shards_of(CONFIG, store, 3):
        put(shard.store.commit_log_folder)
    for enough in (3, 4):
        check_reach(CONFIG, store, enough)
    with pytest.raises(CommandFailed) as two:
        check_reach(CONFIG, store, 2)
    assert str(shards_of(CONFIG, store, 3)[2].store.commit_log_folder) in str(two.value)
    assert "here-1" not in str(two.value)
    with pytest.raises(CommandFailed, match=r"a broker without shards .*here-0.*here-1.*here-2"):
        check_reach(CONFIG, store, 1)


def test_messages_of_a_broker_without_shards_are_not_left_out(tmp_path: Path) -> None:
    put(tmp_path / "commitlog")
    check_reach(CONFIG, stored(tmp_path), 1)
    with pytest.raises(CommandFailed, match="commitlog"):
        check_reach(CONFIG, stored(tmp_path), 2)


def test_what_holds_no_messages_or_has_another_name_is_in_nobodys_way(tmp_path: Path) -> None:
    put(tmp_path / "here-2" / "commitlog", bytes(4096))
    (tmp_path / "here-3").write_text("a file")
    for other in ("there-2", "here-02", "here-x", "here-2-2", "2"):
        put(tmp_path / other / "commitlog")
    check_reach(CONFIG, stored(tmp_path), 2)
    check_reach(CONFIG, stored(tmp_path), 1)


def test_print_shows_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"brokerName=b\nlistenPort=1000\nstorePathRootDir={tmp_path}\nfileReservedTime=7\n")
    assert run(["broker", "start", "-c", str(file), "--shards", "2", "-p"]) == 0
    first, second = capsys.readouterr().out.split("## b-1\n")
    assert first.startswith("## b-0\n")
    for number, text in enumerate([first, second]):
        lines = text.splitlines()
        for line in (
            f"brokerName=b-{number}", f"listenPort=10{number}0", f"storePathRootDir={tmp_path}/b-{number}",
            "fileReservedTime=7",
        ):  # fmt: skip
            assert line in lines
    assert run(["broker", "start", "-c", str(file), "--shards", "2", "--shard", "1", "-p"]) == 0
    assert capsys.readouterr().out == second
    assert run(["broker", "start", "-c", str(file), "-p"]) == 0
    alone = capsys.readouterr().out
    assert run(["broker", "start", "-c", str(file), "--shards", "1", "-p"]) == 0
    assert capsys.readouterr().out == alone


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--shards", "0"], "0 is not in the range"),
        (["--shards", "2", "--shard", "2"], "2 is none of 0 to 1"),
        (["--shard", "1"], "1 is none of 0 to 0"),
        (["--shards", "2", "--listen", "127.0.0.1:65530"], "beyond 65535"),
    ],
)
def test_wrong_use(options: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["broker", "start", "--store", str(tmp_path), *options]) == 2
    assert why in capsys.readouterr().err


def test_refused_is_4_and_names_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path / "b-1" / "commitlog")
    assert run(["broker", "start", "--store", str(tmp_path), "--name", "b", "--listen", "127.0.0.1:0"]) == 4
    error = capsys.readouterr().err
    assert f"{tmp_path}/b-1/commitlog" in error
    assert "--leave-messages" in error
