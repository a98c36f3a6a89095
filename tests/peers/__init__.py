"""Apache RocketMQ beside our tests and benchmarks: servers, Java clients, mqadmin, from Maven packages (README.md)."""

from tests.peers.apache import ApacheCluster, registered_brokers
from tests.peers.driver import DriverError, JavaDriver, mqadmin
from tests.peers.jvm import PeerError, install

__all__ = ["ApacheCluster", "DriverError", "JavaDriver", "PeerError", "install", "mqadmin", "registered_brokers"]
