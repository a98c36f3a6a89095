"""Administration of topics, groups and the broker, and what it tells of itself.

Codes 17, 18, 215, 21, 351, 305, 300, 343; 200, 201, 207, 225, 352, 353, 203, 204; 25, 26, 28, 45.
Java: ``AdminBrokerProcessor`` (5.5.0).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from rocketcore.apache_settings import NEXT_START_KEY
from rocketcore.broker.context import BrokerContext
from rocketcore.broker.runtime_info import RuntimeInfo
from rocketcore.broker.state.client_table import ClientChannel
from rocketcore.broker.state.live_settings import LiveSettings, may_change, when_it_counts
from rocketcore.broker.state.topic_config import check_topic_name
from rocketcore.broker.store import StoreConfig
from rocketcore.codes import RETRY_TOPIC_PREFIX, SYSTEM_TOPICS, RequestCode, ResponseCode
from rocketcore.config_file import config_properties, format_properties, parse_properties
from rocketcore.errors import BrokerError, ConfigError
from rocketcore.naming import is_system_topic
from rocketcore.protocol.bodies.client import Connection, ConsumerConnection, ProducerConnection
from rocketcore.protocol.bodies.group import GroupForbidden, SubscriptionGroupConfig, SubscriptionGroupList
from rocketcore.protocol.bodies.topic import (
    CreateTopicListRequestBody,
    DataVersion,
    GroupList,
    KVTable,
    TopicConfig,
    TopicFilterType,
    TopicList,
)
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.admin import (
    CreateGroupRequestHeader,
    CreateOnlyResponseHeader,
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetAllSubscriptionGroupResponseHeader,
    GetAllTopicConfigResponseHeader,
    GetBrokerConfigResponseHeader,
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    GetTopicConfigRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    QueryTopicsByConsumerRequestHeader,
    UpdateGroupForbiddenRequestHeader,
)
from rocketcore.protocol.pop_info import RETRY_V1, RETRY_V2, pop_retry_topic
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Right, Route

logger = logging.getLogger(__name__)

_SHOWN = {"brokerRole": "ASYNC_MASTER", "filterServerNums": "0", "slaveReadEnable": "false"}
"""Settings of Apache's that tools look for, and that have one value here."""


class AdminProcessor:
    """Answers administration tools; a change is answered when it is on disk.

    stored  waits until the log is stored up to a place; raises BrokerError where it is not
    """

    def __init__(
        self,
        context: BrokerContext,
        store_config: StoreConfig,
        runtime_info: RuntimeInfo,
        live: LiveSettings,
        *,
        delay_offsets: Callable[[], bytes],
        stored: Callable[[int], Awaitable[None]],
        uses_tls: bool = False,
    ) -> None:
        self._shown = _SHOWN | {"useTLS": "true" if uses_tls else "false"}
        self._context = context
        self._store_config = store_config
        self._runtime_info = runtime_info
        self._live = live
        self._delay_offsets = delay_offsets
        self._stored = stored
        self._config_version = DataVersion(timestamp=context.clock.time_millis())

    def routes(self) -> Iterable[Route]:
        code, right = RequestCode, Right
        return (
            Route(code.UPDATE_AND_CREATE_TOPIC, self.update_topic, CreateTopicRequestHeader, right.CREATE),
            Route(code.UPDATE_AND_CREATE_TOPIC_LIST, self.update_topics, None, right.CREATE, body_limit=1 << 20),
            Route(code.DELETE_TOPIC_IN_BROKER, self.delete_topic, DeleteTopicRequestHeader, right.DELETE),
            Route(code.GET_ALL_TOPIC_CONFIG, self.all_topics, None, right.GET),
            Route(code.GET_TOPIC_CONFIG, self.topic_config, GetTopicConfigRequestHeader, right.GET),
            Route(code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, self.system_topics, None, right.GET),
            Route(
                code.QUERY_TOPIC_CONSUME_BY_WHO, self.groups_of_topic, QueryTopicConsumeByWhoRequestHeader, right.GET
            ),
            Route(code.QUERY_TOPICS_BY_CONSUMER, self.topics_of_group, QueryTopicsByConsumerRequestHeader, right.GET),
            Route(code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, self.update_group, CreateGroupRequestHeader, right.CREATE),
            Route(
                code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
                self.update_groups,
                None,
                right.CREATE,
                body_limit=1 << 20,
            ),
            Route(
                code.UPDATE_AND_GET_GROUP_FORBIDDEN, self.forbid_group, UpdateGroupForbiddenRequestHeader, right.UPDATE
            ),
            Route(code.DELETE_SUBSCRIPTIONGROUP, self.delete_group, DeleteSubscriptionGroupRequestHeader, right.DELETE),
            Route(code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self.all_groups, None, right.GET),
            Route(
                code.GET_SUBSCRIPTIONGROUP_CONFIG, self.group_config, GetSubscriptionGroupConfigRequestHeader, right.GET
            ),
            Route(
                code.GET_CONSUMER_CONNECTION_LIST,
                self.consumer_connections,
                GetConsumerConnectionListRequestHeader,
                right.GET,
            ),
            Route(
                code.GET_PRODUCER_CONNECTION_LIST,
                self.producer_connections,
                GetProducerConnectionListRequestHeader,
                right.GET,
            ),
            Route(code.UPDATE_BROKER_CONFIG, self.update_config, None, right.UPDATE, body_limit=256 << 10),
            Route(code.GET_BROKER_CONFIG, self.get_config, None, right.GET),
            Route(code.GET_BROKER_RUNTIME_INFO, self.runtime_info, None, right.GET),
            Route(code.GET_ALL_DELAY_OFFSET, self.delay_offsets, None, right.GET),
        )

    # Topics

    async def update_topic(
        self, channel: Channel, request: RemotingCommand, header: CreateTopicRequestHeader
    ) -> RemotingCommand:
        kind = TopicFilterType.__members__.get(header.topic_filter_type)
        if kind is None:
            raise BrokerError.of(
                ResponseCode.SYSTEM_ERROR, f"topicFilterType = [{header.topic_filter_type}] value invalid"
            )
        topic = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=kind,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
        )
        if header.rc_create_only == 1 and self._context.topics.find(header.topic) is not None:
            await self._context.writer.flushed()  # of who creates it at the same time, perhaps
            return RemotingCommand.response(request, header=CreateOnlyResponseHeader(rc_existed=1))
        if self._context.topics.update(topic, header.attributes or ""):
            logger.info("topic changed by=%s topic=%s", channel.remote_address, topic)
        await self._context.writer.flushed()
        return RemotingCommand.response(request)

    async def update_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Create or change several topics: none where one has a name that cannot be.

        An attribute that is refused ends it, and the topics before stay.
        """
        topics = CreateTopicListRequestBody.decode(request.body).topic_config_list
        if topics is None:
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, "topicConfigList is missing")
        for topic in topics:
            self._context.topics.check(topic)
        try:
            for topic in topics:
                attributes = topic.attributes or {}
                text = ",".join(f"{key}={value}" if value else key for key, value in attributes.items())
                if self._context.topics.update(replace(topic, attributes={}), text):
                    logger.info("topic changed by=%s topic=%s", channel.remote_address, topic)
        finally:
            await self._context.writer.flushed()
        return RemotingCommand.response(request)

    async def delete_topic(
        self, channel: Channel, request: RemotingCommand, header: DeleteTopicRequestHeader
    ) -> RemotingCommand:
        """Remove a topic's settings, queues and offsets, and with it what of it was to be popped again."""
        topic = header.topic
        check_topic_name(topic)
        context = self._context
        if is_system_topic(topic) or topic in context.topics.system_topics:
            raise BrokerError.of(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")
        topics = [topic, *self._retry_topics((topic, group) for group in context.offsets.groups_of(topic))]
        noted = [context.store.delete_topic(name) for name in topics]
        context.topics.delete(topics)
        told_until = context.offsets.remove_topics(topics)
        context.stats.forget_topics(topics)
        logger.info("topic deleted by=%s topic=%s", channel.remote_address, topic)
        # With only some of it on disk a crash would bring back the messages, or old offsets for new messages.
        await asyncio.gather(*noted, self._stored(told_until), context.writer.flushed())
        return RemotingCommand.response(request)

    def _retry_topics(self, places: Iterable[tuple[str, str]]) -> list[str]:
        """The topics by which of topics and groups comes again what was popped, that are there and of no others."""
        return [
            name
            for topic, group in places
            for name in (pop_retry_topic(topic, group, RETRY_V1), pop_retry_topic(topic, group, RETRY_V2))
            if self._context.topics.find(name) is not None and not self._is_of_others(name, topic, group)
        ]

    def _is_of_others(self, retry_topic: str, topic: str, group: str) -> bool:
        """Whether what another group did not consume comes again by this topic: ``%RETRY%a_b_c`` may be of group
        ``a_b_c``, of ``a_b`` for topic ``c``, and of ``a`` for ``b_c``."""
        tail = retry_topic.removeprefix(RETRY_TOPIC_PREFIX)
        if self._context.groups.exists(tail):
            return True
        parts = tail.split("_")
        owners = (("_".join(parts[:number]), "_".join(parts[number:])) for number in range(1, len(parts)))
        return any(
            self._context.offsets.queues(owner, popped) for owner, popped in owners if (popped, owner) != (topic, group)
        )

    def all_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Every topic in one page: what a paging client takes as everything."""
        wrapper = self._context.topics.wrapper()
        header = GetAllTopicConfigResponseHeader(total_topic_num=len(wrapper.topic_config_table))
        return RemotingCommand.response(request, header=header, body=wrapper.encode())

    def topic_config(
        self, channel: Channel, request: RemotingCommand, header: GetTopicConfigRequestHeader
    ) -> RemotingCommand:
        return RemotingCommand.response(request, body=self._topic(header.topic).encode())

    def system_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Those that are here and those that could be: admins can neither create nor delete them."""
        names = sorted(self._context.topics.system_topics | SYSTEM_TOPICS)
        return RemotingCommand.response(request, body=TopicList(names).encode())

    async def groups_of_topic(
        self, channel: Channel, request: RemotingCommand, header: QueryTopicConsumeByWhoRequestHeader
    ) -> RemotingCommand:
        topic = header.topic
        groups = {group async for name, group in self._context.places() if name == topic}
        groups.update(self._context.consumers.groups_of(topic))
        return RemotingCommand.response(request, body=GroupList(sorted(groups)).encode())

    async def topics_of_group(
        self, channel: Channel, request: RemotingCommand, header: QueryTopicsByConsumerRequestHeader
    ) -> RemotingCommand:
        group = header.group
        found = [topic async for topic, owner in self._context.places() if owner == group]
        topics = TopicList(sorted(found), broker_addr=self._context.address)
        return RemotingCommand.response(request, body=topics.encode())

    # Groups

    async def update_group(
        self, channel: Channel, request: RemotingCommand, header: CreateGroupRequestHeader
    ) -> RemotingCommand:
        group = SubscriptionGroupConfig.decode(request.body)
        if header.rc_create_only == 1 and group.group_name in self._context.groups.table:
            await self._context.writer.flushed()  # of who creates it at the same time, perhaps
            return RemotingCommand.response(request, header=CreateOnlyResponseHeader(rc_existed=1))
        self._context.groups.update(group)
        logger.info("group changed by=%s group=%s", channel.remote_address, group.group_name)
        await self._context.writer.flushed()
        return RemotingCommand.response(request)

    async def update_groups(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Create or change several groups: none where one has a name that cannot be.

        An attribute that is refused ends it, and the groups before stay.
        """
        groups = SubscriptionGroupList.decode(request.body).group_config_list
        if groups is None:
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, "groupConfigList is missing")
        for group in groups:
            self._context.groups.check(group)
        try:
            for group in groups:
                self._context.groups.update(group)
                logger.info("group changed by=%s group=%s", channel.remote_address, group.group_name)
        finally:
            await self._context.writer.flushed()
        return RemotingCommand.response(request)

    async def forbid_group(
        self, channel: Channel, request: RemotingCommand, header: UpdateGroupForbiddenRequestHeader
    ) -> RemotingCommand:
        """Take a group's right to read a topic, or give it back; say whether it has it."""
        groups, group, topic = self._context.groups, header.group, header.topic
        if header.readable is not None:
            groups.forbid(group, topic, not header.readable)
            logger.info(
                "group may read by=%s group=%s topic=%s may=%s", channel.remote_address, group, topic, header.readable
            )
            await self._context.writer.flushed()
        body = GroupForbidden(topic, group, not groups.is_forbidden(group, topic))
        return RemotingCommand.response(request, body=body.encode())

    async def delete_group(
        self, channel: Channel, request: RemotingCommand, header: DeleteSubscriptionGroupRequestHeader
    ) -> RemotingCommand:
        """Remove a group's settings and, where that is asked for, its offsets and what it popped."""
        context, group = self._context, header.group_name
        told_until, noted = 0, []
        if header.clean_offset or header.remove_offset:
            topics = {topic for topic, owner in context.offsets.places() if owner == group}
            again = self._retry_topics((topic, group) for topic in topics)
            told_until = context.offsets.remove_group(group)  # may be refused: before anything is changed
            noted = [context.store.delete_topic(name) for name in again]
            context.topics.delete(again)
            context.offsets.remove_topics(again)
            context.stats.forget_topics(again)
        context.groups.delete(group)
        context.stats.forget_group(group)
        logger.info("group deleted by=%s group=%s", channel.remote_address, group)
        await asyncio.gather(*noted, self._stored(told_until), context.writer.flushed())
        return RemotingCommand.response(request)

    def all_groups(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        wrapper = self._context.groups.wrapper()
        header = GetAllSubscriptionGroupResponseHeader(total_group_num=len(wrapper.subscription_group_table))
        return RemotingCommand.response(request, header=header, body=wrapper.encode())

    def group_config(
        self, channel: Channel, request: RemotingCommand, header: GetSubscriptionGroupConfigRequestHeader
    ) -> RemotingCommand:
        name = header.group
        group = self._context.groups.find(name)
        if group is None:
            raise BrokerError.of(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {name}")
        return RemotingCommand.response(request, body=group.encode())

    def consumer_connections(
        self, channel: Channel, request: RemotingCommand, header: GetConsumerConnectionListRequestHeader
    ) -> RemotingCommand:
        name = header.consumer_group
        group = self._context.consumers.find(name)
        if group is None:
            raise BrokerError.of(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        body = ConsumerConnection(
            [_connection(client) for client in group.clients.values()],
            group.subscriptions,
            group.consume_type,
            group.message_model,
            group.consume_from_where,
        )
        return RemotingCommand.response(request, body=body.encode())

    def producer_connections(
        self, channel: Channel, request: RemotingCommand, header: GetProducerConnectionListRequestHeader
    ) -> RemotingCommand:
        name = header.producer_group
        clients = self._context.producers.find(name)
        if not clients:
            raise BrokerError.of(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        body = ProducerConnection([_connection(client) for client in clients])
        return RemotingCommand.response(request, body=body.encode())

    # The broker

    async def update_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Change settings and keep them; one that may not be changed, or does not parse, refuses them all.

        RocketMQ passes over a value that does not parse and answers with success. Its remark says nothing; ours, what
        counts from the next start on, or not at all.
        """
        changes = parse_properties(request.body.decode(errors="replace"))
        refused = sorted(name for name, value in changes.items() if not may_change(name, value))
        if refused:
            raise BrokerError.of(
                ResponseCode.NO_PERMISSION, f"Can not update config in black list. Not changeable: {', '.join(refused)}"
            )
        context = self._context
        try:
            context.change_settings(self._live.change(context.config, self._store_config, changes))
        except ConfigError as error:
            raise BrokerError.of(ResponseCode.INVALID_PARAMETER, str(error)) from None
        self._config_version.next_version(context.clock.time_millis())
        logger.info("settings changed by=%s settings=%s", channel.remote_address, changes)
        if "brokerPermission" in changes:  # name servers may have another one, by requests 205 and 327
            context.topics.touch()
        context.writer.save(self._live.file, self._live.encode)
        await context.writer.flushed()
        return RemotingCommand.response(request, remark=when_it_counts(changes))

    def get_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        shown = config_properties(self._context.config, self._store_config) | self._shown
        shown |= self._live.shown()
        if pending := self._live.pending(self._context.config, self._store_config):
            shown[NEXT_START_KEY] = json.dumps(pending)
        shown["listenPort"] = self._context.address.rpartition(":")[2]  # where listenPort is 0, the one it has
        text = format_properties(shown)
        header = GetBrokerConfigResponseHeader(version=self._config_version.encode().decode())
        return RemotingCommand.response(request, header=header, body=text.encode())

    async def runtime_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(request, body=KVTable(await self._runtime_info.table()).encode())

    def delay_offsets(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(request, body=self._delay_offsets())

    def _topic(self, name: str) -> TopicConfig:
        topic = self._context.topics.find(name)
        if topic is None:
            raise BrokerError.of(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
        return topic


def _connection(client: ClientChannel) -> Connection:
    return Connection(client.client_id, client.channel.remote_address, client.language, client.version)
