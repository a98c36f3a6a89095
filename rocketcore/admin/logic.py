"""AsyncAdmin: the administration of a cluster as coroutines (Java: ``DefaultMQAdminExt``).

It runs on asyncio over a ``RemotingClient``, and on threads inside ``Admin``, over connections whose coroutines never
wait. Its parts have the operations, and no state but the servers. Bodies that one operation reads are imported
there: to make their classes takes longer than most questions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar

from rocketcore.admin.accounts import AccessControl
from rocketcore.admin.clients import Clients
from rocketcore.admin.cluster import Clusters
from rocketcore.admin.dead_letters import DeadLetters
from rocketcore.admin.group_settings import GroupSettings
from rocketcore.admin.groups import Groups
from rocketcore.admin.history import History
from rocketcore.admin.messages import Messages
from rocketcore.admin.name_servers import NameServerSettings
from rocketcore.admin.offsets import Offsets
from rocketcore.admin.servers import Part, Servers, signer_of
from rocketcore.admin.statistics import Statistics
from rocketcore.admin.survey import Surveys
from rocketcore.admin.topics import CreatedTopic, TopicChange, Topics
from rocketcore.admin.transfer import MetadataTransfer
from rocketcore.client.addresses import NameServers
from rocketcore.service import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from rocketcore.transport.client import RemotingClient
    from rocketcore.transport.hooks import RpcHook
    from rocketcore.transport.remoting import Remoting
    from rocketcore.transport.tls.settings import TlsOption

__all__ = ["AsyncAdmin", "CreatedTopic", "TopicChange"]

T = TypeVar("T")
P = ParamSpec("P")
PartT = TypeVar("PartT", bound=Part)


def operation(
    part: type[PartT], method: Callable[Concatenate[PartT, P], Coroutine[Any, Any, T]]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a method of ``AsyncAdmin`` that runs one of a part: the same arguments and the same documentation."""
    name = method.__name__

    async def call(self: AsyncAdmin, /, *arguments: P.args, **options: P.kwargs) -> T:
        _check_texts(method, arguments, options)
        try:
            coroutine = method(part(self.servers), *arguments, **options)
        except TypeError as error:  # names the method that was called, not the one that it runs
            raise TypeError(str(error).replace(f"{part.__name__}.{name}()", f"Admin.{name}()")) from None
        return await coroutine

    functools.update_wrapper(call, method)
    call.__qualname__, call.__module__ = f"AsyncAdmin.{name}", __name__
    return call


def _check_texts(method: Callable[..., Any], arguments: Sequence[object], options: Mapping[str, object]) -> None:
    """Refuse anything but text where a method asks for text: the name of a topic, of a group, of a broker …"""
    for name, value in {**dict(zip(method.__code__.co_varnames[1:], arguments, strict=False)), **options}.items():
        kind = method.__annotations__.get(name)
        if (kind == "str" and not isinstance(value, str)) or (
            kind == "str | None" and not isinstance(value, str | None)
        ):
            raise TypeError(f"Admin.{method.__name__}(): {name} must be text, got {type(value).__name__}")


class AsyncAdmin:
    """Administration over asyncio (Java: ``DefaultMQAdminExt``).

    namesrv             addresses as in ``Producer``
    timeout             seconds for a whole call, however many servers it asks
    broker_address_map  advertised address → address to connect to
    tls                 True trusts the system's authorities, ``TlsConfig`` says more
    hooks               see each request and its answer
    access_key          account of ACL, with its ``secret_key``
    """

    _servers_of: ClassVar[type[Servers]] = Servers

    def __init__(
        self,
        namesrv: NameServers = None,
        *,
        timeout: float = 5.0,
        broker_address_map: Mapping[str, str] | None = None,
        tls: TlsOption = False,
        hooks: Sequence[RpcHook] = (),
        access_key: str = "",
        secret_key: str = "",
        remoting: Remoting | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        signer, address_map = signer_of(access_key, secret_key), dict(broker_address_map or {})

        def connect() -> RemotingClient:
            from rocketcore.transport.client import RemotingClient

            return RemotingClient(tls=tls, hooks=hooks, signer=signer, address_map=address_map)

        self.servers = self._servers_of(namesrv, timeout, clock, remoting, connect)
        """How servers are asked; not public."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; a second call does nothing."""
        await self.servers.close()

    @property
    def timeout(self) -> float:
        """Seconds for a whole call, however many servers it asks; may be changed between calls."""
        return self.servers.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self.servers.timeout = seconds

    topics = operation(Topics, Topics.topics)
    system_topics = operation(Topics, Topics.system_topics)
    unit_topics = operation(Topics, Topics.unit_topics)
    unit_sub_topics = operation(Topics, Topics.unit_sub_topics)
    unit_sub_ununit_topics = operation(Topics, Topics.unit_sub_ununit_topics)
    delete_topic_in_namesrv = operation(Topics, Topics.delete_topic_in_namesrv)
    register_topic = operation(Topics, Topics.register_topic)
    topic_route = operation(Topics, Topics.topic_route)
    topic_routes = operation(Topics, Topics.topic_routes)
    queues = operation(Topics, Topics.queues)
    create_topic = operation(Topics, Topics.create_topic)
    topic_configs = operation(Topics, Topics.topic_configs)
    update_topic = operation(Topics, Topics.update_topic)
    delete_topic = operation(Topics, Topics.delete_topic)
    topic_stats = operation(Topics, Topics.topic_stats)

    query_messages = operation(Messages, Messages.query_messages)
    view_message = operation(Messages, Messages.view_message)
    message_at = operation(Messages, Messages.message_at)

    message_traces = operation(History, History.message_traces)
    message_states = operation(History, History.message_states)
    consume_directly = operation(History, History.consume_directly)

    groups = operation(Groups, Groups.groups)
    group_configs = operation(Groups, Groups.group_configs)
    request_modes = operation(Groups, Groups.request_modes)
    set_request_mode = operation(Groups, Groups.set_request_mode)
    consumer_connections = operation(Groups, Groups.consumer_connections)
    describe_group = operation(Groups, Groups.describe_group)
    group_members = operation(Groups, Groups.group_members)
    consume_stats = operation(Groups, Groups.consume_stats)
    group_lag = operation(Groups, Groups.group_lag)
    offsets = operation(Groups, Groups.offsets)

    create_group = operation(GroupSettings, GroupSettings.create_group)
    update_group = operation(GroupSettings, GroupSettings.update_group)
    delete_group = operation(GroupSettings, GroupSettings.delete_group)

    plan_reset = operation(Offsets, Offsets.plan_reset)
    offsets_at = operation(Offsets, Offsets.offsets_at)
    reset_offsets = operation(Offsets, Offsets.reset_offsets)
    max_offset = operation(Offsets, Offsets.max_offset)
    min_offset = operation(Offsets, Offsets.min_offset)
    search_offset = operation(Offsets, Offsets.search_offset)
    earliest_store_time = operation(Offsets, Offsets.earliest_store_time)
    consumer_offset = operation(Offsets, Offsets.consumer_offset)
    update_consumer_offset = operation(Offsets, Offsets.update_consumer_offset)

    consumer_running_info = operation(Clients, Clients.consumer_running_info)
    queue_owners = operation(Clients, Clients.queue_owners)
    producers = operation(Clients, Clients.producers)

    dead_letter_groups = operation(DeadLetters, DeadLetters.dead_letter_groups)
    dead_letter_queues = operation(DeadLetters, DeadLetters.dead_letter_queues)
    dead_letter_count = operation(DeadLetters, DeadLetters.dead_letter_count)
    dead_letters = operation(DeadLetters, DeadLetters.dead_letters)
    redrive = operation(DeadLetters, DeadLetters.redrive)
    redrive_each = operation(DeadLetters, DeadLetters.redrive_each)

    survey_topics = operation(Surveys, Surveys.survey_topics)
    survey_groups = operation(Surveys, Surveys.survey_groups)
    broker_runtimes = operation(Surveys, Surveys.broker_runtimes)
    newest_messages = operation(Surveys, Surveys.newest_messages)
    earliest_store_times = operation(Surveys, Surveys.earliest_store_times)
    messages_from = operation(Surveys, Surveys.messages_from)
    group_offsets = operation(Surveys, Surveys.group_offsets)

    export_metadata = operation(MetadataTransfer, MetadataTransfer.export_metadata)
    plan_import = operation(MetadataTransfer, MetadataTransfer.plan_import)
    import_metadata = operation(MetadataTransfer, MetadataTransfer.import_metadata)

    cluster_info = operation(Clusters, Clusters.cluster_info)
    cluster_infos = operation(Clusters, Clusters.cluster_infos)
    broker_member_group = operation(Clusters, Clusters.broker_member_group)
    broker_status = operation(Clusters, Clusters.broker_status)
    broker_topics = operation(Clusters, Clusters.broker_topics)
    broker_runtime_info = operation(Clusters, Clusters.broker_runtime_info)
    broker_config = operation(Clusters, Clusters.broker_config)
    update_broker_config = operation(Clusters, Clusters.update_broker_config)
    clean_broker = operation(Clusters, Clusters.clean_broker)
    wipe_write_permission = operation(Clusters, Clusters.wipe_write_permission)
    add_write_permission = operation(Clusters, Clusters.add_write_permission)
    data_versions = operation(Clusters, Clusters.data_versions)

    topic_traffic = operation(Statistics, Statistics.topic_traffic)
    broker_traffic = operation(Statistics, Statistics.broker_traffic)
    group_traffic = operation(Statistics, Statistics.group_traffic)
    echo = operation(Statistics, Statistics.echo)

    users = operation(AccessControl, AccessControl.users)
    create_user = operation(AccessControl, AccessControl.create_user)
    update_user = operation(AccessControl, AccessControl.update_user)
    delete_user = operation(AccessControl, AccessControl.delete_user)
    policies = operation(AccessControl, AccessControl.policies)
    grant = operation(AccessControl, AccessControl.grant)
    revoke = operation(AccessControl, AccessControl.revoke)
    accounts = operation(AccessControl, AccessControl.accounts)
    put_account = operation(AccessControl, AccessControl.put_account)
    delete_account = operation(AccessControl, AccessControl.delete_account)
    set_white_addresses = operation(AccessControl, AccessControl.set_white_addresses)

    namesrv_config = operation(NameServerSettings, NameServerSettings.namesrv_config)
    namesrv_configs = operation(NameServerSettings, NameServerSettings.namesrv_configs)
    update_namesrv_config = operation(NameServerSettings, NameServerSettings.update_namesrv_config)
    get_kv = operation(NameServerSettings, NameServerSettings.get_kv)
    list_kv = operation(NameServerSettings, NameServerSettings.list_kv)
    put_kv = operation(NameServerSettings, NameServerSettings.put_kv)
    delete_kv = operation(NameServerSettings, NameServerSettings.delete_kv)
