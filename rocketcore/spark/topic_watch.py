"""What the brokers hold of a stream's queues, asked again and again while the stream runs.

One question goes to each broker for each topic, all at the same time. A broker that does not answer is asked on in the
background, until ``fetchTimeoutMs`` is over; meanwhile the others' queues are read. Routes are asked for at an
interval and where a broker fails, not each time: queues, brokers and topics that come are seen within it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from rocketcore.client.arrow_ranges import QueueRange, topic_ranges
from rocketcore.client.arrow_reader import REFUSALS
from rocketcore.client.attempts import Retries, newest_route, refuses, until_answered
from rocketcore.client.instance import ClientInstance
from rocketcore.client.route_table import TopicRoute
from rocketcore.errors import RocketError, RouteNotFound, TopicNotExist, TransportError
from rocketcore.message import MessageQueue
from rocketcore.printable import printable
from rocketcore.service import Clock
from rocketcore.spark.options import ReadOptions
from rocketcore.spark.planning import matching_topics
from rocketcore.spark.range_task import READ_THE_REST

__all__ = ["Look", "TopicWatch"]

logger = logging.getLogger(__name__)

ROUTE_SECONDS: Final = 10.0
"""Between two looks at the routes, and at the list of topics for ``subscribePattern``."""

PATIENCE: Final = 1.0
"""Seconds that a batch waits for a broker's answer before it is made without that broker's new messages."""


@dataclass
class Look:
    """What was seen at one time.

    held     what the queues that can be read hold; those of a broker that does not answer are not in here
    gone     queues that were asked for and cannot be read any more → what they held when last seen, None if they never
             were
    lagging  those of ``held`` that a slave answered for: it may have less than its master
    """

    held: dict[MessageQueue, QueueRange] = field(default_factory=dict)
    gone: dict[MessageQueue, QueueRange | None] = field(default_factory=dict)
    lagging: set[MessageQueue] = field(default_factory=set)


class _Place:
    """The queues of a topic at one broker, and what it said of them last."""

    def __init__(self, topic: str, broker: str) -> None:
        self.topic = topic
        self.broker = broker
        self.named = False
        """Whether the route names the broker."""
        self.readable: frozenset[MessageQueue] = frozenset()
        """By the route."""
        self.known: set[MessageQueue] = set()
        """Of which the stream has offsets."""
        self.held: dict[MessageQueue, QueueRange] = {}
        """What it said last of each."""
        self.question: asyncio.Task[dict[MessageQueue, QueueRange]] | None = None
        self.silent = False
        """Whether it was told that the broker does not answer."""


class TopicWatch:
    """The queues that the options mean, and what they hold; belongs to the event loop of its instance."""

    def __init__(self, instance: ClientInstance, options: ReadOptions, clock: Clock) -> None:
        self._instance = instance
        self._options = options
        self._clock = clock
        self._topics = {*options.topics, *(queue.topic for queue in options.assignment)}
        self._places: dict[tuple[str, str], _Place] = {}
        self._routes: dict[str, TopicRoute] = {}
        self._routes_due = float("-inf")
        self._refresh: asyncio.Task[None] | None = None
        self._began = False
        self._name_servers_silent = False

    async def look(self, known: Collection[MessageQueue], needed: Iterable[MessageQueue] | None = None) -> Look:
        """Ask all brokers.

        known   queues that the caller has offsets of, beside those that the routes name
        needed  those whose brokers are waited for; None: all brokers are
        raises  what a broker that does not answer failed with when ``fetchTimeoutMs`` was over; its refusal
        """
        await self._look_at_routes(known, wait=needed is None)
        for queue in known:
            self._place(queue.topic, queue.broker).known.add(queue)
        for place in self._places.values():
            if place.question is None:
                place.question = asyncio.ensure_future(self._ask(place))
        await self._wait(needed)
        self._take_routes()
        return self._seen(known)

    async def close(self) -> None:
        """Give up what is under way."""
        questions = [place.question for place in self._places.values() if place.question is not None]
        tasks: list[asyncio.Task[Any]] = [*questions, *([self._refresh] if self._refresh is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _place(self, topic: str, broker: str) -> _Place:
        place = self._places.get((topic, broker))
        if place is None:
            place = self._places[topic, broker] = _Place(topic, broker)
        return place

    async def _ask(self, place: _Place) -> dict[MessageQueue, QueueRange]:
        instance, options, refusals = self._instance, self._options, 0
        queues = place.readable | (place.known - place.held.keys())

        async def ask(limit: float) -> dict[MessageQueue, QueueRange]:
            return await topic_ranges(instance, place.topic, place.broker, queues, limit)

        def final(error: RocketError) -> bool:
            nonlocal refusals
            refusals = refusals + 1 if refuses(error) else 0
            return refusals >= REFUSALS or isinstance(error, TopicNotExist)

        retries = Retries(options.fetch_timeout, instance.clock)
        return await until_answered(instance, place.topic, retries, options.request_timeout, ask, final)

    async def _wait(self, needed: Iterable[MessageQueue] | None) -> None:
        places = list(self._places.values())
        if needed is not None:
            wanted = {(queue.topic, queue.broker) for queue in needed}
            places = [place for place in places if (place.topic, place.broker) in wanted]
        if asked := [place.question for place in places if place.question is not None]:
            await asyncio.wait(asked)
        others = [place.question for place in self._places.values() if place.question is not None and not place.silent]
        if others:
            await asyncio.wait(others, timeout=PATIENCE)

    def _seen(self, known: Iterable[MessageQueue]) -> Look:
        """Take the answers that are there."""
        look = Look()
        gone: list[_Place] = []
        for place in self._places.values():
            if place.question is None or not place.question.done():
                if not place.silent:
                    place.silent = True
                    logger.warning("broker %s does not answer: its queues of topic %s wait", *_names(place))
                continue
            question, place.question = place.question, None
            try:
                answer = question.result()
            except RocketError as error:
                # A broker that has left the route has had its time to come back.
                if place.named and not isinstance(error, TopicNotExist):
                    if isinstance(error, TransportError):
                        text = f"broker {place.broker} with queues of topic {place.topic!r}: {error}"
                        raise type(error)(text) from error
                    raise
                gone.append(place)
                continue
            if place.silent:
                place.silent = False
                logger.info("broker %s answers again: its queues of topic %s go on", *_names(place))
            place.held |= answer
            # A broker that is not named, and answers, is not gone: it or the name server has just started.
            readable = place.readable if place.named else place.known & answer.keys()
            there = {queue: place.held[queue] for queue in readable if queue in place.held}
            look.held |= there
            if self._instance.routes.find_publish_address(place.broker) is None:
                look.lagging |= there.keys()
        for queue in known:
            place = self._places[queue.topic, queue.broker]
            if queue not in look.held and (place in gone or place.question is None):
                look.gone[queue] = place.held.get(queue)
        return look

    async def _look_at_routes(self, known: Iterable[MessageQueue], *, wait: bool) -> None:
        if not self._began:
            await self._begin(known)
            self._began = True
        elif self._refresh is None and self._clock.monotonic() >= self._routes_due:
            self._refresh = asyncio.ensure_future(self._refresh_routes())
        if self._refresh is not None:
            await asyncio.wait((self._refresh,), timeout=None if wait else PATIENCE)
            if self._refresh.done():
                self._refresh.result()
                self._refresh = None
        self._take_routes()

    async def _begin(self, known: Iterable[MessageQueue]) -> None:
        """Ask for every route: nothing of the cluster was seen yet, and a wrong address is to be told."""
        options = self._options
        if options.topic_pattern is not None:
            self._topics |= {*await self._matching(), *(queue.topic for queue in known)}
        retries = Retries(options.fetch_timeout, self._instance.clock, level=logging.WARNING)
        for topic in sorted(self._topics):
            try:
                await newest_route(self._instance, topic, options.request_timeout, retries)
            except RouteNotFound as error:
                if not options.fail_on_data_loss:
                    continue
                if any(queue.topic == topic for queue in known):
                    raise RouteNotFound(f"{error}, and the checkpoint has offsets of it; {READ_THE_REST}") from error
                raise
        self._routes_due = self._clock.monotonic() + ROUTE_SECONDS

    async def _refresh_routes(self) -> None:
        """Ask for every route again; what fails leaves what is known."""
        self._routes_due = self._clock.monotonic() + ROUTE_SECONDS
        instance, timeout = self._instance, self._options.request_timeout
        try:
            if self._options.topic_pattern is not None:
                self._topics |= set(await self._matching())
            for topic in sorted(self._topics):
                try:
                    await instance.refresh_topic(topic, timeout=timeout)
                except RouteNotFound as error:
                    logger.debug("no route topic=%s error=%s", topic, error)
        except TransportError as error:
            if not self._name_servers_silent:
                self._name_servers_silent = True
                logger.warning("no name server answers, the routes stay as they are: %s", error)
        except RocketError as error:
            logger.warning("routes not refreshed: %s", error)
        else:
            self._name_servers_silent = False

    async def _matching(self) -> tuple[str, ...]:
        pattern = self._options.topic_pattern
        assert pattern is not None
        return await matching_topics(self._instance, pattern, self._options.request_timeout)

    def _take_routes(self) -> None:
        """Bring the places up to the newest routes."""
        for topic in self._topics:
            route = self._instance.routes.find(topic)
            if route is None or self._routes.get(topic) is route:
                continue
            self._routes[topic] = route
            assigned = set(self._options.assignment)
            named = {queue.broker for queue in (*route.subscribe, *route.publish)}
            readable: dict[str, set[MessageQueue]] = {}
            for queue in route.subscribe:
                if not assigned or queue in assigned:
                    readable.setdefault(queue.broker, set()).add(queue)
            for broker in readable:
                self._place(topic, broker)
            for place in self._places.values():
                if place.topic == topic:
                    place.named = place.broker in named
                    place.readable = frozenset(readable.get(place.broker, ()))


def _names(place: _Place) -> tuple[str, str]:
    return printable(place.broker), printable(place.topic)
