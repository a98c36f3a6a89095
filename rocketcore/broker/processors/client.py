"""Heartbeats and sign-offs: 34, 35, 46 (Java: ``ClientManageProcessor``, 5.5.0)."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable

from rocketcore.broker.context import BrokerContext
from rocketcore.broker.cooperative import AT_ONCE_BYTES
from rocketcore.codes import RETRY_TOPIC_PREFIX, LanguageCode, RequestCode, ResponseCode
from rocketcore.errors import BrokerError, ConfigError
from rocketcore.filter import SQL92, TAG
from rocketcore.protocol.bodies.heartbeat import CheckClientRequestBody, ConsumerData, HeartbeatData
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.consumer import HeartbeatResponseHeader, UnregisterClientRequestHeader
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Right, Route


class ClientProcessor:
    """Keeps the client tables; a client exists for the broker from its first heartbeat."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    def routes(self) -> Iterable[Route]:
        code = RequestCode
        return (
            Route(code.HEART_BEAT, self.heart_beat, None, Right.SUB, body_limit=1 << 20),
            Route(code.UNREGISTER_CLIENT, self.unregister_client, UnregisterClientRequestHeader, Right.SUB),
            Route(code.CHECK_CLIENT_CONFIG, self.check_client_config, None, Right.SUB, body_limit=1 << 20),
        )

    def heart_beat(
        self, channel: Channel, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None]:
        """Register every group of a heartbeat.

        The answer always asks for full heartbeats (``IS_SUB_CHANGE``): one without subscriptions is understood too.
        """
        if len(request.body) > AT_ONCE_BYTES:
            return self._long_heart_beat(channel, request)
        return self._register(channel, request, HeartbeatData.decode(request.body))

    async def _long_heart_beat(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        data = await self._context.cooperative.decoded(HeartbeatData, request.body)
        return None if channel.closed else self._register(channel, request, data)

    def _register(self, channel: Channel, request: RemotingCommand, data: HeartbeatData) -> RemotingCommand:
        _check_names(data)
        language = _language(request.language)
        for consumer in data.consumer_data_set:
            self._register_consumer(channel, request, data, consumer, language)
        for producer in data.producer_data_set:
            self._context.producers.register(channel, data.client_id, language, request.version, producer.group_name)
        return RemotingCommand.response(
            request, header=HeartbeatResponseHeader(support_heartbeat_v2=True, sub_change=True)
        )

    def _register_consumer(
        self,
        channel: Channel,
        request: RemotingCommand,
        data: HeartbeatData,
        consumer: ConsumerData,
        language: LanguageCode | None,
    ) -> None:
        context = self._context
        group = context.groups.find(consumer.group_name)
        if group is None:
            return
        is_ordered = any(
            topic is not None and topic.order
            for topic in (
                context.topics.find(subscription.topic)
                for subscription in consumer.subscription_data_set
                if not subscription.topic.startswith(RETRY_TOPIC_PREFIX)
            )
        )
        context.ensure_retry_topic(group, order=is_ordered)
        keeps = data.heartbeat_fingerprint != 0 and data.without_sub
        context.consumers.register(
            channel,
            data.client_id,
            language,
            request.version,
            consumer,
            keep_subscriptions=keeps,
        )
        if not keeps:
            connected = context.consumers.find(consumer.group_name)
            assert connected is not None, "it was registered"
            context.filters.register(consumer.group_name, connected.subscriptions.values())

    def unregister_client(
        self, channel: Channel, request: RemotingCommand, header: UnregisterClientRequestHeader
    ) -> RemotingCommand:
        if header.producer_group is not None:
            self._context.producers.unregister(channel, header.client_id, header.producer_group)
        if header.consumer_group is not None:
            self._context.groups.find(header.consumer_group)  # as Apache's, which ask whether its members hear of it
            self._context.consumers.unregister(channel, header.client_id, header.consumer_group)
        return RemotingCommand.response(request)

    def check_client_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Say whether a subscription's filter can be served; tags always can."""
        subscription = CheckClientRequestBody.decode(request.body).subscription_data if request.body else None
        kind = None if subscription is None else subscription.expression_type
        if subscription is None or kind in (None, "", TAG):
            return RemotingCommand.response(request)
        if not self._context.config.enable_property_filter:
            raise BrokerError.of(
                ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind}"
            )
        if kind != SQL92:
            raise BrokerError.of(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"unknown expression type {kind}")
        from rocketcore.filter_sql import compile_sql  # most brokers start for tags alone

        try:
            compile_sql(subscription.sub_string)
        except ConfigError as error:
            raise BrokerError.of(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        return RemotingCommand.response(request)


def _check_names(data: HeartbeatData) -> None:
    """Raise DecodeError where a name is missing; RocketMQ fails at it, with what comes before registered."""
    data.require("client_id")
    for producer in data.producer_data_set:
        producer.require("group_name")
    for consumer in data.consumer_data_set:
        consumer.require("group_name")
        for subscription in consumer.subscription_data_set:
            subscription.require("topic")


def _language(ordinal: int) -> LanguageCode | None:
    try:
        return LanguageCode(ordinal)
    except ValueError:
        return None
