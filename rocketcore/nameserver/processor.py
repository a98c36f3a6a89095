"""What the name server answers, one handler per request code.

Handlers are as lenient as the original where a field is missing: most codes then answer as for an unknown name.
Requests that write a file run on the writer thread, one after the other; everything else is done when the handler
returns. RocketMQ: ``DefaultRequestProcessor``, ``ClientRequestProcessor``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from xxhash import xxh3_128_intdigest

from rocketcore._fast.crc32 import crc32
from rocketcore.codes import FRAME_MAX_BYTES, ORDER_TOPIC_NAMESPACE, RequestCode, ResponseCode, TopicSysFlag
from rocketcore.errors import ConfigError, DecodeError, NoPermission
from rocketcore.nameserver.config import RunningConfig
from rocketcore.nameserver.housekeeping import Housekeeping
from rocketcore.nameserver.kv_config import KVConfigManager
from rocketcore.nameserver.names import check_address, check_name, check_topics
from rocketcore.nameserver.registration import check_version, queue_numbers, read_registration
from rocketcore.nameserver.route_info import (
    BrokerAddress,
    BrokerRegistration,
    RegisterResult,
    RouteInfoManager,
    filter_by_zone,
)
from rocketcore.protocol.bodies.route import BrokerMemberGroup, GetBrokerMemberGroupResponseBody, TopicRouteData
from rocketcore.protocol.bodies.topic import DataVersion, KVTable, TopicList
from rocketcore.protocol.command import RemotingCommand
from rocketcore.protocol.headers.nameserver import (
    AddWritePermOfBrokerResponseHeader,
    GetKVConfigResponseHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from rocketcore.transport.channel import Channel
from rocketcore.transport.routes import Right, Route
from rocketcore.transport.slow_requests import SlowRequests

__all__ = ["ZONE_MODE", "NameServerProcessor"]

logger = logging.getLogger(__name__)

RunInWriter = Callable[[Callable[[], None]], Awaitable[None]]

ZONE_MODE: Final = "__ZONE_MODE"
ZONE_NAME: Final = "__ZONE_NAME"
NOT_SET: Final = "not set any response code"
"""The remark that the original leaves on a successful answer to 901."""

_UNIT_AND_SUB: Final = TopicSysFlag.UNIT | TopicSysFlag.UNIT_SUB


class NameServerProcessor:
    """The handlers of one name server.

    run_in_writer   runs a function that writes a file on the writer thread and awaits its end
    serving         False while the server refuses route questions after its start
    slow            is told what is slow when that setting changes
    """

    def __init__(
        self,
        routes: RouteInfoManager,
        kv: KVConfigManager,
        running: RunningConfig,
        housekeeping: Housekeeping,
        *,
        run_in_writer: RunInWriter,
        serving: Callable[[], bool],
        slow: SlowRequests,
    ) -> None:
        self._routes = routes
        self._kv = kv
        self._running = running
        self._housekeeping = housekeeping
        self._run_in_writer = run_in_writer
        self._serving = serving
        self._slow = slow

    def routes(self) -> Iterable[Route]:
        """Return who answers what. Where no header is named, missing fields name nothing, as in the original."""
        code, right = RequestCode, Right
        return (
            Route(code.PUT_KV_CONFIG, self.put_kv, None, right.UPDATE, header_limit=2 << 20),  # it carries the value
            Route(code.GET_KV_CONFIG, self.get_kv, None, right.GET),
            Route(code.DELETE_KV_CONFIG, self.delete_kv, None, right.UPDATE),
            Route(code.GET_KVLIST_BY_NAMESPACE, self.list_kv, None, right.GET),
            Route(code.QUERY_DATA_VERSION, self.query_data_version, None, right.GET),
            Route(
                code.REGISTER_BROKER,
                self.register_broker,
                RegisterBrokerRequestHeader,
                right.UPDATE,
                body_limit=FRAME_MAX_BYTES,
            ),
            Route(code.UNREGISTER_BROKER, self.unregister_broker, None, right.UPDATE),
            Route(code.BROKER_HEARTBEAT, self.heartbeat, None, right.UPDATE),
            Route(code.GET_BROKER_MEMBER_GROUP, self.broker_member_group, None, right.GET),
            Route(code.GET_ROUTEINFO_BY_TOPIC, self.route, None, right.GET),
            Route(code.GET_BROKER_CLUSTER_INFO, self.cluster_info, None, right.GET),
            Route(code.WIPE_WRITE_PERM_OF_BROKER, self.wipe_write_permission, None, right.UPDATE),
            Route(code.ADD_WRITE_PERM_OF_BROKER, self.add_write_permission, None, right.UPDATE),
            Route(code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, self.all_topics, None, right.GET),
            Route(code.GET_TOPICS_BY_CLUSTER, self.topics_by_cluster, None, right.GET),
            Route(code.GET_SYSTEM_TOPIC_LIST_FROM_NS, self.system_topics, None, right.GET),
            Route(code.GET_UNIT_TOPIC_LIST, self.unit_topics, None, right.GET),
            Route(code.GET_HAS_UNIT_SUB_TOPIC_LIST, self.unit_sub_topics, None, right.GET),
            Route(code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, self.unit_sub_not_unit_topics, None, right.GET),
            Route(code.DELETE_TOPIC_IN_NAMESRV, self.delete_topic, None, right.DELETE),
            Route(code.REGISTER_TOPIC_IN_NAMESRV, self.register_topic, None, right.CREATE, body_limit=256 << 10),
            Route(code.UPDATE_NAMESRV_CONFIG, self.update_config, None, right.UPDATE, body_limit=256 << 10),
            Route(code.GET_NAMESRV_CONFIG, self.get_config, None, right.GET),
        )

    # Brokers

    def register_broker(
        self, channel: Channel, request: RemotingCommand, header: RegisterBrokerRequestHeader
    ) -> RemotingCommand:
        """REGISTER_BROKER (103)."""
        fields = request.ext_fields or {}
        body = request.body
        if header.body_crc32 and header.body_crc32 != crc32(body) & 0x7FFFFFFF:
            return _refused(request, "crc32 not match")
        broker = BrokerRegistration(
            cluster=header.cluster_name,
            broker_name=header.broker_name,
            broker_id=header.broker_id,
            address=header.broker_addr,
            ha_address=fields.get("haServerAddr"),
            zone=fields.get(ZONE_NAME),
            timeout_millis=header.heartbeat_timeout_millis,
            enable_acting_master=header.enable_acting_master,
        )
        digest = hash((broker, header.compressed, request.version, xxh3_128_intdigest(body)))
        result = self._routes.register_unchanged(broker, channel, digest)
        if result is None:
            _check_broker(broker)
            known = self._routes.known_topics(broker)
            registered = read_registration(body, header.compressed, request.version, known)
            if "clusterName" in fields:
                result = self._routes.register_broker(broker, registered, channel, digest)
            else:
                logger.warning("broker ignored, it names no cluster broker=%s", broker.broker_name)
                result = RegisterResult()
        if result is None:
            return _refused(request, "register broker failed")
        if result.refusal:
            return _refused(request, result.refusal)
        if result.change is not None:
            self._housekeeping.notify([result.change])
        order = None
        if self._running.config.return_order_topic_config_to_broker:
            order = self._kv.namespace(ORDER_TOPIC_NAMESPACE)
        return RemotingCommand.response(
            request,
            header=RegisterBrokerResponseHeader(ha_server_addr=result.ha_address, master_addr=result.master_address),
            remark=_rivalry(broker, result.rival) if result.rival else None,
            body=b"" if order is None else KVTable(table=order).encode(),
        )

    def unregister_broker(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """UNREGISTER_BROKER (104): done when it is answered, where 5.x only queues it."""
        try:
            header = request.header(UnRegisterBrokerRequestHeader)
        except DecodeError:
            return RemotingCommand.response(request)
        gone = BrokerAddress(header.cluster_name, header.broker_name, header.broker_addr, header.broker_id)
        self._housekeeping.notify(self._routes.unregister_brokers([gone]))
        return RemotingCommand.response(request)

    def heartbeat(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """BROKER_HEARTBEAT (904)."""
        self._routes.heartbeat(*_broker_key(request))
        return RemotingCommand.response(request)

    def query_data_version(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """QUERY_DATA_VERSION (322)."""
        asked = DataVersion.decode(request.body) if request.body else None
        if asked is not None:
            check_version(asked)
        known = self._routes.data_version(*_broker_key(request))
        return RemotingCommand.response(
            request,
            header=QueryDataVersionResponseHeader(changed=known is None or asked != known),
            body=b"" if known is None else known.encode(),
        )

    def broker_member_group(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """GET_BROKER_MEMBER_GROUP (901)."""
        fields = request.ext_fields or {}
        name = fields.get("brokerName")
        group = BrokerMemberGroup(
            cluster=fields.get("clusterName"),
            broker_name=name,
            broker_addrs={} if name is None else self._routes.addresses(name),
        )
        return RemotingCommand.response(
            request, remark=NOT_SET, body=GetBrokerMemberGroupResponseBody(broker_member_group=group).encode()
        )

    def cluster_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """GET_BROKER_CLUSTER_INFO (106)."""
        return RemotingCommand.response(request, body=self._routes.cluster_info().encode())

    def wipe_write_permission(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """WIPE_WRITE_PERM_OF_BROKER (205)."""
        name = _field(request, "brokerName")
        count = 0 if name is None else self._routes.wipe_write_permission(name)
        return RemotingCommand.response(request, header=WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count))

    def add_write_permission(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """ADD_WRITE_PERM_OF_BROKER (327)."""
        name = _field(request, "brokerName")
        count = 0 if name is None else self._routes.add_write_permission(name)
        return RemotingCommand.response(request, header=AddWritePermOfBrokerResponseHeader(add_topic_count=count))

    # Routes

    def route(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """GET_ROUTEINFO_BY_TOPIC (105), always as standard JSON: readers of the plain dialect take it as well."""
        if not self._serving():
            return _failed(request, "name server not ready")
        fields = request.ext_fields or {}
        topic = fields.get("topic")
        zone = fields.get(ZONE_NAME, "")
        body: bytes | None = None
        if topic is not None and zone.strip() and fields.get(ZONE_MODE, "").lower() == "true":
            found = self._routes.route(topic)
            body = None if found is None else filter_by_zone(found, zone).encode_standard()
        elif topic is not None:
            body = self._routes.answer(topic.encode("utf-8", "replace"))
        if body is None:
            return RemotingCommand.response(
                request,
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {'null' if topic is None else topic}\n"
                "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details.",
            )
        return RemotingCommand.response(request, body=body)

    # Topics

    def all_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206)."""
        if not self._running.config.enable_all_topic_list:
            return _failed(request, "disable")
        return RemotingCommand.response(request, body=TopicList(topic_list=self._routes.topics()).encode())

    def topics_by_cluster(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """GET_TOPICS_BY_CLUSTER (224)."""
        cluster = _field(request, "cluster")
        return self._topic_list(request, lambda: [] if cluster is None else self._routes.topics_of_cluster(cluster))

    def unit_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """GET_UNIT_TOPIC_LIST (311)."""
        return self._topic_list(request, lambda: self._routes.topics_with_flags(TopicSysFlag.UNIT, TopicSysFlag.UNIT))

    def unit_sub_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """GET_HAS_UNIT_SUB_TOPIC_LIST (312)."""
        flag = TopicSysFlag.UNIT_SUB
        return self._topic_list(request, lambda: self._routes.topics_with_flags(flag, flag))

    def unit_sub_not_unit_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST (313)."""
        return self._topic_list(request, lambda: self._routes.topics_with_flags(_UNIT_AND_SUB, TopicSysFlag.UNIT_SUB))

    def _topic_list(self, request: RemotingCommand, topics: Callable[[], list[str]]) -> RemotingCommand:
        if not self._running.config.enable_topic_list:
            return _failed(request, "disable")
        return RemotingCommand.response(request, body=TopicList(topic_list=topics()).encode())

    def system_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS (304)."""
        names, address = self._routes.system_names()
        return RemotingCommand.response(request, body=TopicList(topic_list=names, broker_addr=address).encode())

    def delete_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """DELETE_TOPIC_IN_NAMESRV (216)."""
        topic = _field(request, "topic")
        if topic is not None:
            self._routes.delete_topic(topic, _field(request, "clusterName"))
        return RemotingCommand.response(request)

    def register_topic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """REGISTER_TOPIC_IN_NAMESRV (217)."""
        topic = _field(request, "topic")
        queues = TopicRouteData.decode(request.body).queue_datas if request.body else []
        if topic is not None:
            check_topics((topic,))
            self._routes.register_topic(topic, [(each.broker_name, queue_numbers(each, topic)) for each in queues])
        return RemotingCommand.response(request)

    # Key-value table

    async def put_kv(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """PUT_KV_CONFIG (100)."""
        fields = request.ext_fields or {}
        namespace, key, value = fields.get("namespace"), fields.get("key"), fields.get("value")
        if namespace is None or key is None:
            return _failed(request, "namespace or key is null")
        if value is not None:
            await self._run_in_writer(lambda: self._kv.put(namespace, key, value))
            self._kv_changed(namespace)
        return RemotingCommand.response(request)

    async def delete_kv(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """DELETE_KV_CONFIG (102)."""
        namespace, key = _field(request, "namespace"), _field(request, "key")
        if namespace is not None and key is not None:
            await self._run_in_writer(lambda: self._kv.delete(namespace, key))
            self._kv_changed(namespace)
        return RemotingCommand.response(request)

    def _kv_changed(self, namespace: str) -> None:
        if namespace == ORDER_TOPIC_NAMESPACE:
            self._routes.forget_answers()

    def get_kv(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """GET_KV_CONFIG (101)."""
        fields = request.ext_fields or {}
        namespace, key = fields.get("namespace"), fields.get("key")
        value = None if namespace is None or key is None else self._kv.get(namespace, key)
        if value is None:
            return RemotingCommand.response(
                request,
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {_java(namespace)} Key: {_java(key)}",
                GetKVConfigResponseHeader(),
            )
        return RemotingCommand.response(request, header=GetKVConfigResponseHeader(value=value))

    def list_kv(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """GET_KVLIST_BY_NAMESPACE (219)."""
        namespace = (request.ext_fields or {}).get("namespace")
        table = None if namespace is None else self._kv.namespace(namespace)
        if table is None:
            return RemotingCommand.response(
                request, ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {_java(namespace)}"
            )
        return RemotingCommand.response(request, body=KVTable(table=table).encode())

    # Settings

    async def update_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """UPDATE_NAMESRV_CONFIG (318)."""
        if request.body:
            text = request.body.decode("utf-8", "replace")
            try:
                await self._run_in_writer(lambda: self._running.update(text))
            except NoPermission as error:
                return RemotingCommand.response(request, error.code, error.remark)
            except ConfigError as error:
                return _failed(request, str(error))
            self._routes.reconfigure(self._running.config)
            self._slow.set_millis(self._running.config.slow_request_millis)
        return RemotingCommand.response(request)

    def get_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """GET_NAMESRV_CONFIG (319)."""
        return RemotingCommand.response(request, body=self._running.text().encode("utf-8", "replace"))


def _rivalry(broker: BrokerRegistration, rival: str) -> str:
    return (
        f"{rival}, which is connected too, has the name and id of this broker, {broker.broker_name}/{broker.broker_id}:"
        f" {broker.address} took its place"
    )


def _failed(request: RemotingCommand, remark: str) -> RemotingCommand:
    return RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, remark)


def _refused(request: RemotingCommand, remark: str) -> RemotingCommand:
    return RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, remark, RegisterBrokerResponseHeader())


def _check_broker(broker: BrokerRegistration) -> None:
    """Refuse names and addresses that nobody should be handed; raises DecodeError."""
    check_name("clusterName", broker.cluster)
    check_name("brokerName", broker.broker_name)
    check_address("brokerAddr", broker.address)
    if broker.ha_address:
        check_address("haServerAddr", broker.ha_address)
    if broker.zone:
        check_name(ZONE_NAME, broker.zone)


def _field(request: RemotingCommand, name: str) -> str | None:
    """Return an ext field; one that is missing names nothing, an empty one what has an empty name."""
    return (request.ext_fields or {}).get(name)


def _broker_key(request: RemotingCommand) -> tuple[str, str]:
    fields = request.ext_fields or {}
    cluster, address = fields.get("clusterName"), fields.get("brokerAddr")
    if cluster is None or address is None:
        raise DecodeError(f"{'clusterName' if cluster is None else 'brokerAddr'} is missing")
    return cluster, address


def _java(text: str | None) -> str:
    return "null" if text is None else text
