"""``rocket cluster list`` and ``rocket broker list``: what the name servers know, in one request."""

from __future__ import annotations

from typing import Any

from rocketcore.cli.options import command, current
from rocketcore.cli.render import Column, show_rows
from rocketcore.codes import MASTER_ID

__all__ = ["list_brokers", "list_clusters"]


def _cluster_info() -> Any:
    from rocketcore.admin.client import Admin

    with Admin(current().namesrv, timeout=current().timeout) as admin:
        return admin.cluster_info()


@command(help="List clusters with their brokers.")
def list_clusters() -> None:
    info = _cluster_info()
    rows = []
    for cluster, names in sorted(info.cluster_addr_table.items()):
        members = [info.broker_addr_table[name] for name in names if name in info.broker_addr_table]
        rows.append(
            {
                "cluster": cluster,
                "brokers": sorted(names),
                "masters": sum(MASTER_ID in data.broker_addrs for data in members),
                "slaves": sum(len(data.broker_addrs.keys() - {MASTER_ID}) for data in members),
            }
        )
    show_rows(rows, [Column("cluster"), Column("brokers"), Column("masters"), Column("slaves")])


@command(help="List the brokers that are registered.")
def list_brokers() -> None:
    info = _cluster_info()
    rows = [
        {
            "broker": name,
            "cluster": data.cluster,
            "broker_id": broker_id,
            "role": "master" if broker_id == MASTER_ID else "slave",
            "address": address,
            "zone": data.zone_name,
        }
        for name, data in sorted(info.broker_addr_table.items())
        for broker_id, address in sorted(data.broker_addrs.items())
    ]
    show_rows(
        rows,
        [
            Column("broker"),
            Column("cluster"),
            Column("broker_id", "ID"),
            Column("role"),
            Column("address"),
            Column("zone", wide=True),
        ],
    )
