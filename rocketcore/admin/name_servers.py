"""NameServerSettings: the settings of name servers, and the table of keys and values that they have for others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from rocketcore.admin.requests import Request, change_of, delete_kv, done, properties_in, put_kv, table_in
from rocketcore.admin.servers import Part
from rocketcore.codes import ORDER_TOPIC_NAMESPACE, RequestCode
from rocketcore.errors import QueryNotFound, RocketError
from rocketcore.protocol.headers.nameserver import (
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
)
from rocketcore.service import Deadline

__all__ = ["NameServerSettings"]

_NAMESRV_CONFIG: Final = Request(RequestCode.GET_NAMESRV_CONFIG, "settings of the name server", properties_in)


class NameServerSettings(Part):
    """The part of ``AsyncAdmin`` about name servers."""

    async def namesrv_config(self, address: str | None = None) -> dict[str, str]:
        """Return the settings of a name server, of the first that answers where none is named."""
        if address is not None:
            return await _NAMESRV_CONFIG(self._servers.connections(), address, self._servers.timeout)
        return await self._servers.ask(_NAMESRV_CONFIG)

    async def namesrv_configs(self) -> dict[str, dict[str, str] | RocketError]:
        """Return the settings of each name server by its address; for a server without an answer, its error."""
        return await self._servers.each(self._servers.name_servers, _NAMESRV_CONFIG)

    async def update_namesrv_config(self, properties: Mapping[str, str]) -> None:
        """Change settings of every name server (Java: ``updateNameServerConfig``).

        A name that a server does not have changes nothing there; it is not an error.

        raises  NoPermission for a protected setting, PartlyDone where some name servers fail
        """
        await self._servers.everywhere(change_of(RequestCode.UPDATE_NAMESRV_CONFIG, properties, done))

    async def get_kv(self, namespace: str, key: str) -> str | None:
        """Return a value of the name servers' key-value table; None for an unknown key."""
        try:
            return await self._servers.ask(_value_of(namespace, key))
        except QueryNotFound:
            return None

    async def list_kv(self, namespace: str) -> dict[str, str]:
        """Return a namespace of that table; raises QueryNotFound where it was never used."""
        request = Request(
            RequestCode.GET_KVLIST_BY_NAMESPACE,
            f"keys of namespace {namespace!r}",
            lambda answer: table_in(answer) if answer.body else {},
            GetKVListByNamespaceRequestHeader(namespace=namespace),
        )
        return await self._servers.ask(request)

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Set a value at every name server; raises PartlyDone where some fail."""
        await self._servers.everywhere(put_kv(namespace, key, value))

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete a value at every name server; an unknown key is not an error. Raises PartlyDone where some fail."""
        await self._servers.everywhere(delete_kv(namespace, key))

    async def put_order(
        self,
        topic: str,
        write_queues: Mapping[str, int | None],
        name_servers: Iterable[str],
        deadline: Deadline,
        *,
        whole: bool = False,
    ) -> None:
        """Keep at every name server how many queues each broker has for an ordered topic; None: it has no order there.

        name_servers  those that answer; what they have of other brokers stays
        whole         these are all brokers: nothing of others stays
        """
        # Half of the time: one that is silent then leaves some for the change.
        half = Deadline(deadline.remaining() / 2, self._servers.clock)
        answers = await self._servers.each(name_servers, _value_of(ORDER_TOPIC_NAMESPACE, topic), half)
        there = [value for value in answers.values() if isinstance(value, str)]
        counts: dict[str, object] = {}
        for value in () if whole else there:
            counts = dict(part.rpartition(":")[::2] for part in value.split(";") if ":" in part) | counts
        counts |= write_queues
        value = ";".join(f"{name}:{count}" for name, count in sorted(counts.items()) if count is not None)
        if value:
            change = put_kv(ORDER_TOPIC_NAMESPACE, topic, value)
        elif there:
            change = delete_kv(ORDER_TOPIC_NAMESPACE, topic)
        else:
            return
        await self._servers.everywhere(change, f"order configuration of topic {topic!r}", deadline=deadline)


def _value_of(namespace: str, key: str) -> Request[str | None]:
    return Request(
        RequestCode.GET_KV_CONFIG,
        f"value of {key!r} in {namespace!r}",
        lambda answer: answer.header(GetKVConfigResponseHeader).value,
        GetKVConfigRequestHeader(namespace=namespace, key=key),
    )
