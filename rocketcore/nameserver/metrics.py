"""The metrics of a name server. RocketMQ's has none; labels and the names that brokers have too are RocketMQ's."""

from __future__ import annotations

import asyncio
from typing import Final

from rocketcore.nameserver.route_info import RouteInfoManager
from rocketcore.protocol.exposition import Family, label_text
from rocketcore.transport.server.server import RemotingServer
from rocketcore.transport.slow_requests import SlowRequests

__all__ = ["encode_metrics"]

MOST_BROKERS: Final = 10_000
"""In one scrape; how many more there are is a metric of its own."""
_SLICE: Final = 50


async def encode_metrics(routes: RouteInfoManager, server: RemotingServer, slow: SlowRequests) -> list[bytes]:
    """Return the text in parts, made in slices between which the event loop serves others."""
    node = {"node_type": "nameserver", "node_id": server.address}
    topics = Family("rocketmq_topic_number", "gauge", "Topics that brokers have registered")
    topics.add(routes.topic_count, label_text(node))
    connections = Family("rocketcore_connections", "gauge", "Open connections of brokers and clients")
    connections.add(server.connection_count, label_text(node))
    slow_requests = Family(
        "rocketcore_slow_requests_total", "counter", "Requests that took slowRequestMillis or longer"
    )
    slow_requests.add(slow.count, label_text(node))
    brokers = Family("rocketcore_broker_members", "gauge", "Members of a broker that are registered")
    masters = Family("rocketcore_broker_has_master", "gauge", "1 where one of them is the master")
    table = list(routes.cluster_info().broker_addr_table.values())
    for number, data in enumerate(table[:MOST_BROKERS]):
        labels = label_text({**node, "cluster": data.cluster, "broker": data.broker_name})
        brokers.add(len(data.broker_addrs), labels)
        masters.add(int(data.master_address is not None), labels)
        if number % _SLICE == 0:
            await asyncio.sleep(0)
    left_out = Family("rocketcore_metrics_left_out", "gauge", "Brokers beyond the bound of one scrape")
    left_out.add(max(0, len(table) - MOST_BROKERS), label_text(node))
    parts = []
    for family in (topics, connections, slow_requests, brokers, masters, left_out):
        for part in family.encode():
            parts.append(part)
            await asyncio.sleep(0)
    return parts
