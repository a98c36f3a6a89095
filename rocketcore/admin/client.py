"""Admin: the administration of a cluster for blocking programs; ``AsyncAdmin`` is the same for asyncio.

RocketMQ: ``DefaultMQAdminExt``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from threading import Thread
from typing import Any, Final, Self, TypeVar

from rocketcore.admin.cluster import BrokerStatus
from rocketcore.admin.group_settings import CreatedGroup, GroupChange
from rocketcore.admin.logic import AsyncAdmin, CreatedTopic, TopicChange
from rocketcore.admin.servers import Servers, signer_of
from rocketcore.client.addresses import NameServers
from rocketcore.client.blocking import blocking
from rocketcore.client.tracebacks import edge
from rocketcore.errors import RocketError
from rocketcore.transport.blocking.client import BlockingChannelAdapter, BlockingRemotingClient, run_sync
from rocketcore.transport.hooks import RpcHook
from rocketcore.transport.tls.settings import TlsOption

__all__ = ["Admin", "AsyncAdmin", "BrokerStatus", "CreatedGroup", "CreatedTopic", "GroupChange", "TopicChange"]

T = TypeVar("T")

_THREADS: Final = 32
"""Servers that one call asks at the same time; they live as long as the call."""


class _ThreadServers(Servers):
    """Servers behind connections whose coroutines are done when they return."""

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - the caller is a thread and no loop runs in it

    async def at_once(self, calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T | RocketError]:
        def outcome(call: Callable[[], Awaitable[T]]) -> T | RocketError:
            async def run() -> T:
                return await call()

            try:
                return run_sync(run())
            except RocketError as error:
                return error

        if len(calls) < 2:
            return [outcome(call) for call in calls]
        waiting = deque(enumerate(calls))
        outcomes: dict[int, T | RocketError] = {}
        failures: list[BaseException] = []

        def work() -> None:
            while waiting:
                try:
                    number, call = waiting.popleft()
                except IndexError:  # another thread was faster
                    return
                try:
                    outcomes[number] = outcome(call)
                except BaseException as error:
                    failures.append(error)

        # No pool of concurrent.futures: it and the interpreter's end wait for its threads, so that Ctrl-C would have to
        # wait for the server that does not answer.
        threads = [Thread(target=work, name="admin", daemon=True) for _ in range(min(len(calls), _THREADS))]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            waiting.clear()
        if failures:
            raise failures[0]
        return [outcomes[number] for number in range(len(calls))]


class ThreadAdmin(AsyncAdmin):
    """The logic over connections whose coroutines are done when they return."""

    _servers_of = _ThreadServers


class Admin:
    """Administration for blocking programs; thread-safe (Java: ``DefaultMQAdminExt``).

    Its operations are those of ``AsyncAdmin``. It has threads only while a call asks several servers at the same time.

    namesrv             addresses as in ``Producer``
    timeout             seconds for a whole call, however many servers it asks
    broker_address_map  advertised address → address to connect to
    tls                 True trusts the system's authorities, ``TlsConfig`` says more
    hooks               see each request and its answer
    access_key          account of ACL, with its ``secret_key``
    """

    @edge
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
    ) -> None:
        self._client = BlockingRemotingClient(
            tls=tls, hooks=hooks, signer=signer_of(access_key, secret_key), address_map=broker_address_map, name="admin"
        )
        self._admin = ThreadAdmin(namesrv, timeout=timeout, remoting=BlockingChannelAdapter(self._client))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; a second call does nothing."""
        self._client.close()

    def _logic(self) -> ThreadAdmin:
        return self._admin

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return run_sync(coroutine)

    @property
    def timeout(self) -> float:
        """Seconds for a whole call, however many servers it asks; may be changed between calls."""
        return self._admin.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._admin.timeout = seconds

    # Topics
    topics = blocking(AsyncAdmin.topics)
    system_topics = blocking(AsyncAdmin.system_topics)
    unit_topics = blocking(AsyncAdmin.unit_topics)
    unit_sub_topics = blocking(AsyncAdmin.unit_sub_topics)
    unit_sub_ununit_topics = blocking(AsyncAdmin.unit_sub_ununit_topics)
    topic_route = blocking(AsyncAdmin.topic_route)
    topic_routes = blocking(AsyncAdmin.topic_routes)
    queues = blocking(AsyncAdmin.queues)
    topic_configs = blocking(AsyncAdmin.topic_configs)
    topic_stats = blocking(AsyncAdmin.topic_stats)
    topic_traffic = blocking(AsyncAdmin.topic_traffic)
    create_topic = blocking(AsyncAdmin.create_topic)
    update_topic = blocking(AsyncAdmin.update_topic)
    delete_topic = blocking(AsyncAdmin.delete_topic)
    delete_topic_in_namesrv = blocking(AsyncAdmin.delete_topic_in_namesrv)
    register_topic = blocking(AsyncAdmin.register_topic)

    # Messages
    query_messages = blocking(AsyncAdmin.query_messages)
    view_message = blocking(AsyncAdmin.view_message)
    message_at = blocking(AsyncAdmin.message_at)
    message_traces = blocking(AsyncAdmin.message_traces)
    message_states = blocking(AsyncAdmin.message_states)
    consume_directly = blocking(AsyncAdmin.consume_directly)

    # Offsets of queues
    max_offset = blocking(AsyncAdmin.max_offset)
    min_offset = blocking(AsyncAdmin.min_offset)
    search_offset = blocking(AsyncAdmin.search_offset)
    earliest_store_time = blocking(AsyncAdmin.earliest_store_time)
    earliest_store_times = blocking(AsyncAdmin.earliest_store_times)

    # Groups
    groups = blocking(AsyncAdmin.groups)
    group_configs = blocking(AsyncAdmin.group_configs)
    describe_group = blocking(AsyncAdmin.describe_group)
    create_group = blocking(AsyncAdmin.create_group)
    update_group = blocking(AsyncAdmin.update_group)
    delete_group = blocking(AsyncAdmin.delete_group)
    request_modes = blocking(AsyncAdmin.request_modes)
    set_request_mode = blocking(AsyncAdmin.set_request_mode)
    consumer_connections = blocking(AsyncAdmin.consumer_connections)
    consumer_running_info = blocking(AsyncAdmin.consumer_running_info)
    queue_owners = blocking(AsyncAdmin.queue_owners)
    group_members = blocking(AsyncAdmin.group_members)
    producers = blocking(AsyncAdmin.producers)
    consume_stats = blocking(AsyncAdmin.consume_stats)
    group_lag = blocking(AsyncAdmin.group_lag)
    offsets = blocking(AsyncAdmin.offsets)
    offsets_at = blocking(AsyncAdmin.offsets_at)
    plan_reset = blocking(AsyncAdmin.plan_reset)
    reset_offsets = blocking(AsyncAdmin.reset_offsets)
    consumer_offset = blocking(AsyncAdmin.consumer_offset)
    update_consumer_offset = blocking(AsyncAdmin.update_consumer_offset)

    # Dead letters
    dead_letter_groups = blocking(AsyncAdmin.dead_letter_groups)
    dead_letter_count = blocking(AsyncAdmin.dead_letter_count)
    dead_letter_queues = blocking(AsyncAdmin.dead_letter_queues)
    dead_letters = blocking(AsyncAdmin.dead_letters)
    redrive = blocking(AsyncAdmin.redrive)
    redrive_each = blocking(AsyncAdmin.redrive_each)

    # Everything of a kind
    survey_topics = blocking(AsyncAdmin.survey_topics)
    survey_groups = blocking(AsyncAdmin.survey_groups)
    broker_runtimes = blocking(AsyncAdmin.broker_runtimes)
    newest_messages = blocking(AsyncAdmin.newest_messages)
    messages_from = blocking(AsyncAdmin.messages_from)
    group_offsets = blocking(AsyncAdmin.group_offsets)

    # Topics and groups as a whole
    export_metadata = blocking(AsyncAdmin.export_metadata)
    plan_import = blocking(AsyncAdmin.plan_import)
    import_metadata = blocking(AsyncAdmin.import_metadata)

    # Clusters and brokers
    cluster_info = blocking(AsyncAdmin.cluster_info)
    cluster_infos = blocking(AsyncAdmin.cluster_infos)
    broker_member_group = blocking(AsyncAdmin.broker_member_group)
    broker_status = blocking(AsyncAdmin.broker_status)
    broker_traffic = blocking(AsyncAdmin.broker_traffic)
    group_traffic = blocking(AsyncAdmin.group_traffic)
    echo = blocking(AsyncAdmin.echo)
    broker_topics = blocking(AsyncAdmin.broker_topics)
    broker_runtime_info = blocking(AsyncAdmin.broker_runtime_info)
    broker_config = blocking(AsyncAdmin.broker_config)
    update_broker_config = blocking(AsyncAdmin.update_broker_config)
    clean_broker = blocking(AsyncAdmin.clean_broker)
    wipe_write_permission = blocking(AsyncAdmin.wipe_write_permission)
    add_write_permission = blocking(AsyncAdmin.add_write_permission)
    data_versions = blocking(AsyncAdmin.data_versions)

    # Accounts
    users = blocking(AsyncAdmin.users)
    create_user = blocking(AsyncAdmin.create_user)
    update_user = blocking(AsyncAdmin.update_user)
    delete_user = blocking(AsyncAdmin.delete_user)
    policies = blocking(AsyncAdmin.policies)
    grant = blocking(AsyncAdmin.grant)
    revoke = blocking(AsyncAdmin.revoke)
    accounts = blocking(AsyncAdmin.accounts)
    put_account = blocking(AsyncAdmin.put_account)
    delete_account = blocking(AsyncAdmin.delete_account)
    set_white_addresses = blocking(AsyncAdmin.set_white_addresses)

    # Name servers
    namesrv_config = blocking(AsyncAdmin.namesrv_config)
    namesrv_configs = blocking(AsyncAdmin.namesrv_configs)
    update_namesrv_config = blocking(AsyncAdmin.update_namesrv_config)
    get_kv = blocking(AsyncAdmin.get_kv)
    list_kv = blocking(AsyncAdmin.list_kv)
    put_kv = blocking(AsyncAdmin.put_kv)
    delete_kv = blocking(AsyncAdmin.delete_kv)
