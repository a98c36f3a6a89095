"""Uses an installed rocketcore, away from its checkout: the command, a cluster in a process of its own and one here."""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import rocketcore as rmq

BODY = "hello from a stranger"


def rocket(*arguments: str) -> str:
    done = subprocess.run(["rocket", *arguments], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        sys.exit(f"rocket {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def use_command() -> None:
    """A cluster as ``rocket up`` starts it; a message goes in and comes out by the command."""
    up = subprocess.Popen(["rocket", "up", "--port", "0", "-o", "json"], stdout=subprocess.PIPE, text=True)
    assert up.stdout is not None
    try:
        namesrv = json.loads(up.stdout.readline())["address"]
        rocket("topic", "create", "greetings", "--queues", "1", "--namesrv", namesrv)
        rocket("produce", "greetings", BODY, "--namesrv", namesrv)
        shown = rocket("tail", "greetings", "--offsets", "start", "-e", "-f", "%s", "--namesrv", namesrv)
        assert shown == f"{BODY}\n", shown
    finally:
        up.terminate()
        up.wait(30)
    assert up.returncode == 0, up.returncode


def use_library() -> None:
    """The same in one process."""
    with rmq.LocalCluster() as cluster:
        with rmq.Admin(cluster.namesrv) as admin:
            admin.create_topic("greetings", queues=1)
        with rmq.Producer(cluster.namesrv, group="stranger") as producer:
            assert producer.send("greetings", BODY)
        with rmq.PushConsumer(cluster.namesrv, group="stranger", start_from="first") as consumer:
            consumer.subscribe("greetings")
            message = next(iter(consumer))
            assert message.text() == BODY
            message.ack()


def main() -> None:
    environment = Path(sys.argv[1])
    assert rmq.__file__ is not None
    assert Path(rmq.__file__).is_relative_to(environment), f"{rmq.__file__} is not what was installed"
    installed = {distribution.name.lower() for distribution in metadata.distributions()}
    assert not installed & {"cython", "numpy", "pyarrow", "pyspark"}, sorted(installed)
    use_command()
    use_library()


if __name__ == "__main__":
    main()
