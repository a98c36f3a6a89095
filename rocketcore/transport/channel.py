"""One connection of an event loop: frames in, handlers and outstanding requests, frames out.

What one read brought is looked at as a whole. The kernels find all its frames and read all their heads into the rows of
a table before any command is made, since on a hot path none is needed: the rows of one code go to the ``run`` of its
route together, which reads what it wants of them in one more kernel call and returns all answers as bytes. Only the
other rows become commands, one after the other, and are served by the handler of their route.

A read is corked: what is written while it is served leaves in one write at its end, for a write is a system call and
costs more than most handlers. The queue is flushed before that where it exceeds the high-water mark; so a turn never
holds more unsent bytes than the mark and one answer, and when the transport has taken more than the mark too, it says
that it is full. Then a server stops in the middle of the read, keeps the rest of it and stops reading. What a turn has
to do is bounded by what the transport gives at a time, 256 KiB or one frame.

Of an incomplete frame at the end of a read the beginning is kept, see ``inbound``: a long one that nobody serves is
refused before its body has come.

Both ends may ask. Opaques of the two directions are independent: the response bit is looked at first.

RocketMQ: ``NettyRemotingAbstract``, ``NettyDecoder``, ``NettyEncoder``.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable
from typing import Any, Final

from rocketcore._fast import frame as frame_kernel
from rocketcore.codes import OVERLOAD, RemotingFlag, ResponseCode, Version
from rocketcore.errors import DecodeError, Overloaded
from rocketcore.protocol.command import RemotingCommand, next_opaque, request_name
from rocketcore.protocol.frame import Chunk
from rocketcore.transport import exchange
from rocketcore.transport.endpoint import Endpoint
from rocketcore.transport.inbound import Inbound
from rocketcore.transport.lingering import Lingering
from rocketcore.transport.outbound import Outbound
from rocketcore.transport.outstanding import Outstanding
from rocketcore.transport.routes import RunHandler
from rocketcore.transport.states import TRANSITIONS, Event, State

__all__ = ["Channel"]

logger = logging.getLogger(__name__)

_CODE: Final = frame_kernel.CODE
_FLAG: Final = frame_kernel.FLAG
_STATUS: Final = frame_kernel.STATUS
_FRAME_START: Final = frame_kernel.FRAME_START
_RESPONSE: Final = int(RemotingFlag.RESPONSE)
_ONEWAY: Final = int(RemotingFlag.ONEWAY)
_FULL: Final = State.FULL
_GO_AWAY_SINCE: Final = int(Version.V5_3_1)
_BUSY: Final = (ResponseCode.SYSTEM_BUSY, OVERLOAD)
_UNANSWERED: Final = (-1, "")


class Channel(asyncio.Protocol):
    """One connection.

    ``attributes`` belongs to whoever uses the channel. Nothing here may be called from another thread.

    state         where in its life it is
    closed        nothing is sent any more: what is written is dropped
    write_paused  the peer has to take some of what was written before more should be
    last_read     monotonic seconds
    """

    __slots__ = (
        "__weakref__",
        "_arrived",
        "_broke_rules",
        "_endpoint",
        "_held_bytes",
        "_inbound",
        "_loop",
        "_monotonic",
        "_outbound",
        "_outstanding",
        "_serving",
        "_slow",
        "_stream",
        "_transport",
        "attributes",
        "closed",
        "last_read",
        "local_address",
        "remote_address",
        "state",
        "write_paused",
    )

    def __init__(self, endpoint: Endpoint[Channel]) -> None:
        self.attributes: dict[str, Any] = {}
        self._broke_rules = ""  # why the peer is not listened to any more
        self._endpoint = endpoint
        self._held_bytes = 0  # of those that the endpoint counts
        self._inbound = Inbound(endpoint.routes, endpoint.server)
        self._loop = asyncio.get_running_loop()
        self._monotonic = endpoint.clock.monotonic
        self._outstanding = Outstanding(self._monotonic)
        self._serving = 0
        self._slow = endpoint.slow
        self._stream: Any = None  # the transport, where it is one whose responder may answer for this channel
        self.closed = False
        self.last_read = self._arrived = self._monotonic()
        self.local_address = ""
        self.remote_address = ""
        self.state = State.NEW
        self.write_paused = False

    def __repr__(self) -> str:
        return f"<Channel {self.local_address} → {self.remote_address} {self.state.value}>"

    def _happened(self, event: Event) -> None:
        self.state = state = TRANSITIONS[self.state, event]
        self.closed = state is State.CLOSING or state is State.CLOSED
        self.write_paused = state is _FULL
        if self.closed:
            self._inbound.clear()
            self._endpoint.partial_bytes -= self._held_bytes
            self._held_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.remote_address = exchange.socket_address(transport.get_extra_info("peername"))
        self.attach(transport)

    def attach(self, transport: Any) -> None:
        """Begin to use a connected transport; ``remote_address`` is known."""
        high_water_bytes = self._endpoint.limits.write_high_water_bytes
        self._transport = transport
        if hasattr(transport, "direct"):
            self._stream = transport
            self._stream.direct = True
        self.local_address = exchange.socket_address(transport.get_extra_info("sockname"))
        transport.set_write_buffer_limits(high=high_water_bytes)
        self._outbound = Outbound(transport, high_water_bytes, self._monotonic)
        self._endpoint.channels.add(self)
        self._happened(Event.CONNECTED)

    def connection_lost(self, exc: Exception | None) -> None:
        self._happened(Event.LOST)
        self._outbound.clear()
        self._endpoint.channels.discard(self)
        self._outbound.wake()
        cause = self._broke_rules or ("the connection was closed" if exc is None else f"the connection broke: {exc}")
        self._outstanding.fail(self.remote_address, cause)
        for callback in self._endpoint.close_callbacks:
            try:
                callback(self)
            except Exception:
                logger.exception("close callback failed endpoint=%s channel=%s", self._endpoint.name, self)

    def pause_writing(self) -> None:
        self._happened(Event.BUFFER_FULL)
        if self._reading_stopped:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        was_stopped = self._reading_stopped
        self._happened(Event.BUFFER_EMPTIED)
        self._outbound.wake()
        if was_stopped:
            self._transport.resume_reading()
            if self._inbound.since is not None:
                self._inbound.restart(self._monotonic())
            # Frames that were read but not looked at yet; there may be no further read to bring them up.
            if self._inbound.kept_bytes:
                self._loop.call_soon(self._read_kept)

    def data_received(self, data: bytes) -> None:
        self.last_read = self._arrived = self._monotonic()
        inbound = self._inbound
        if inbound.since is not None:
            self._resume_reading(data)
        else:
            self._read(data)
            if inbound.since is not None:
                self._count_held()

    def part_received(self, size: int) -> None:
        """Hear from the stream how much of the frame is there that it receives into its place."""
        self.last_read = self._monotonic()
        if self.closed:
            return
        self._inbound.placed_bytes = size
        self._count_held()

    @property
    def _reading_stopped(self) -> bool:
        """Whether nothing is read until the peer has taken some of its answers."""
        return self.state is _FULL and self._endpoint.server

    def _read_kept(self) -> None:
        if self._inbound.kept_bytes and not self.closed and not self._reading_stopped:
            self._arrived = self._monotonic()  # that the peer did not read until now is its own affair
            self._resume_reading(b"")

    def _resume_reading(self, data: bytes) -> None:
        whole = self._inbound.feed(data)
        if whole is not None:
            self._read(whole)
        self._inbound.end_if_complete()
        self._count_held()

    def _read(self, whole: bytes) -> None:
        """Serve the frames that begin ``whole``, and keep the beginning of one that is not complete."""
        endpoint = self._endpoint
        outbound = self._outbound
        routes = endpoint.routes
        reader = endpoint.reader
        chunk = reader.chunk
        size = len(whole)
        is_long = size > routes.least_limit
        position = 0
        outbound.corked = True
        try:
            while not self.closed:
                end = reader.scan(whole, position)
                route = routes.get(chunk.code)
                if (
                    route is not None
                    and route.run is not None
                    and end == size
                    and chunk.count <= route.run_most
                    and not endpoint.going_away
                    and not (is_long and route.excess(size, size))
                ):
                    # All that the read brought is one run, as nearly always on a hot path: no row is looked at here.
                    reply = self._run(route.run, chunk, 0, chunk.count)
                    if reply and not outbound.pieces and not self.closed:
                        outbound.last_written = self.last_read
                        if type(reply) is bytes:
                            self._transport.write(reply)
                        else:
                            self._transport.writelines(reply)
                    elif reply:
                        self.write(reply)
                    return
                served = self._dispatch(chunk, is_long)
                position = end if served == chunk.count else chunk.rows[served, _FRAME_START]
                if chunk.count == 0 or position == size or self._reading_stopped:
                    break
            if position < size and not self.closed:
                self._inbound.keep(whole, position, self.last_read, self._stream, self._refuses)
        except DecodeError as error:
            self._broke_rules = f"it sent what is no frame: {error}"
            self._log_closing(str(error))
            self.close()
        finally:
            chunk.data = b""
            outbound.corked = False
            if outbound.pieces:
                outbound.flush()

    def _dispatch(self, chunk: Chunk, is_long: bool) -> int:
        """Serve the rows of a chunk; returns how many, all of them unless the peer does not read its answers.

        is_long  a frame may be longer than its route allows
        """
        endpoint = self._endpoint
        lengths_of = self._inbound.lengths
        heads, count = chunk.heads, chunk.count
        index = 0
        while index < count and not self.closed:
            code = heads[index, _CODE]
            last = index
            route = endpoint.routes.get(code)
            run = None if route is None or endpoint.going_away else route.run
            if route is not None and run is not None:
                most = min(count, index + route.run_most)
                while (
                    last < most
                    and heads[last, _CODE] == code
                    and not heads[last, _STATUS]
                    and not heads[last, _FLAG] & _RESPONSE
                    and not (is_long and route.excess(*lengths_of(chunk, last)))
                ):
                    last += 1
            if run is not None and last > index:
                reply = self._run(run, chunk, index, last)
                if reply:
                    self.write(reply)
                index = last
            else:
                lengths = lengths_of(chunk, index) if is_long else None
                command = chunk.command(index)
                if command.is_response:
                    self._outstanding.answered(command, self.remote_address)
                else:
                    self.serve(command, lengths)
                index += 1
            if self._reading_stopped:
                return index
        return count

    def _refuses(self, head: bytes, body_bytes: int) -> bool:
        """Tell whether the rest of a frame is not worth receiving, and answer it then; see ``Inbound``."""
        reader = self._endpoint.reader
        reader.scan(len(head).to_bytes(4, "big") + head, 0)
        command = reader.chunk.command(0)
        if command.is_response:
            return command.opaque not in self._outstanding
        refusal = self._refusal(command, (len(head) - 4, body_bytes))
        if refusal is not None:
            self._refuse(command, *refusal)
        return refusal is not None

    def _count_held(self) -> None:
        if self.closed:
            return
        endpoint = self._endpoint
        held = self._inbound.held_bytes
        endpoint.partial_bytes += held - self._held_bytes
        self._held_bytes = held
        if self._stream is not None:
            self._stream.direct = self._inbound.since is None
        if endpoint.partial_bytes > endpoint.limits.max_partial_bytes:
            self._log_closing(f"{endpoint.partial_bytes} bytes of incomplete frames are held")
            self.abort()

    def _run(self, handler: RunHandler, chunk: Chunk, first: int, last: int) -> bytes | list[bytes] | None:
        try:
            reply = handler(self, chunk, first, last)
        except Exception as error:
            logger.exception("run handler failed endpoint=%s remote=%s", self._endpoint.name, self.remote_address)
            for index in range(first, last):
                self._refuse(chunk.command(index), ResponseCode.SYSTEM_ERROR, exchange.failure_text(error))
            return None
        slow = self._slow
        ended = self._monotonic()
        if ended - self._arrived >= slow.seconds:
            self._tell_slow(chunk.command(first), self._arrived, slow.ended, ended, last - first)
        slow.ended = ended
        return reply

    def serve(self, command: RemotingCommand, lengths: tuple[int, int] | None = None) -> None:
        """Serve a request by the handler of its row; ``lengths`` of its header and body, where they may be too many."""
        endpoint = self._endpoint
        refusal = self._refusal(command, lengths)
        limits = endpoint.limits
        if refusal is None and (self._serving >= limits.max_in_flight or len(endpoint.tasks) >= limits.max_serving):
            refusal = _BUSY
        if refusal is not None:
            self._refuse(command, *refusal)
            return
        slow = self._slow
        last_ended = slow.ended
        route = endpoint.routes[command.code]
        try:
            for hook in endpoint.hooks:
                hook.before_request(self.remote_address, command)
            result = route.serve(self, command)
        except Exception as error:
            result = self._failure(command, error)
        if result is None or isinstance(result, RemotingCommand):
            self._finish(command, result)
            slow.ended = ended = self._monotonic()
            if ended - self._arrived >= slow.seconds:
                self._tell_slow(command, self._arrived, last_ended, ended)
            return
        command.detach()
        self._serving += 1
        arrived = math.inf if route.waits else self._arrived
        slow.ended = self._monotonic()
        task = self._loop.create_task(
            self._serve_later(command, result, arrived, last_ended), name=f"{endpoint.name}-{command.code}"
        )
        endpoint.tasks.add(task)
        task.add_done_callback(endpoint.tasks.discard)

    def _refusal(self, command: RemotingCommand, lengths: tuple[int, int] | None) -> tuple[int, str] | None:
        """Return code and remark for a request that no handler is to see; None: one is."""
        endpoint = self._endpoint
        if endpoint.going_away:
            if command.version > _GO_AWAY_SINCE:
                return ResponseCode.GO_AWAY, "please go away"
            if not endpoint.takes_requests:
                return _UNANSWERED
        route = endpoint.routes.get(command.code)
        if route is None:
            return exchange.not_supported(command.code)
        excess = route.excess(*lengths) if lengths is not None else ""
        return (ResponseCode.SYSTEM_ERROR, excess) if excess else None

    def _refuse(self, command: RemotingCommand, code: int, remark: str) -> None:
        if code >= 0:
            self._reply(command, RemotingCommand.response(command, code, remark))

    async def _serve_later(
        self, command: RemotingCommand, result: Awaitable[RemotingCommand | None], arrived: float, last_ended: float
    ) -> None:
        begun = False
        try:
            await self.turn()
            begun = True
            response = await result
        except asyncio.CancelledError as error:
            # Where nobody cancelled this task, it is the end of something that the handler waited for.
            this = asyncio.current_task()
            if this is None or this.cancelling():
                raise
            response = self._failure(
                command, RuntimeError(f"a task that the handler waited for was cancelled: {error!r}")
            )
        except Exception as error:
            response = self._failure(command, error)
        finally:
            self._serving -= 1
            if not begun and asyncio.iscoroutine(result):
                result.close()
        self._finish(command, response)
        self._slow.ended = ended = self._monotonic()
        if ended - arrived >= self._slow.seconds:
            self._tell_slow(command, arrived, last_ended, ended)

    async def turn(self) -> None:
        """Wait until an answer may be worked on: when the peer takes its answers, and others had their turn."""
        turns = self._endpoint.turns
        if not self._reading_stopped and turns.has_room():
            return
        while True:
            if self._reading_stopped:
                await self._outbound.emptied()
            await turns.wait()
            if not self._reading_stopped:
                return

    def _tell_slow(
        self, command: RemotingCommand, arrived: float, last_ended: float, ended: float, requests: int = 1
    ) -> None:
        """Tell of a request whose turn came when it had arrived and the one before it had ended."""
        began = max(arrived, last_ended)
        self._slow.tell(self.remote_address, command, began - arrived, ended - began, requests=requests)

    def _finish(self, command: RemotingCommand, response: RemotingCommand | None) -> None:
        """Show the answer to the hooks that saw the request, and send it."""
        if response is not None:
            try:
                for hook in self._endpoint.hooks:
                    hook.after_response(self.remote_address, command, response)
            except Exception as error:
                response = self._failure(command, error)
        self._reply(command, response)

    def _failure(self, command: RemotingCommand, error: Exception) -> RemotingCommand:
        return exchange.failure(command, error, self._endpoint.name, self.remote_address)

    def _reply(self, request: RemotingCommand, response: RemotingCommand | None) -> None:
        if response is not None and not request.is_oneway and not self.closed:
            self.write(exchange.answer_frame(request, response, self._endpoint.name, self.remote_address))

    def write(self, data: bytes | memoryview | list[bytes] | list[bytes | memoryview]) -> None:
        """Send bytes, together with what else is written in this turn of the loop; nothing on a closed channel."""
        if not self.closed:
            self._outbound.write(data)

    @property
    def is_direct(self) -> bool:
        """Whether a reactor reads and writes the connection."""
        return self._stream is not None

    def unsent(self) -> bool:
        """Hand all that was written to the transport now; tell whether that has some of it left."""
        if not self.closed:
            self._outbound.flush()
        return not self.closed and self._transport.get_write_buffer_size() > 0

    def send(self, command: RemotingCommand) -> None:
        """Send a command, for example an answer that was held back."""
        self.write(command.encode())

    def invoke_nowait(self, command: RemotingCommand, timeout: float) -> asyncio.Future[RemotingCommand]:
        """Send a request and return the future of its answer, which fails with RequestTimeout or ConnectionLost.

        raises  ConnectionLost on a closed channel, Overloaded where too many requests or bytes are outstanding
        """
        self._check_room(command)
        if len(self._outstanding) >= self._endpoint.limits.max_in_flight:
            raise exchange.too_many(self.remote_address, len(self._outstanding))
        if command.opaque in self._outstanding:
            command.opaque = next_opaque()
        frame = command.pieces()
        future = self._outstanding.add(command, self.remote_address, timeout, self._check_silence)
        self.write(frame)
        return future

    async def invoke(self, command: RemotingCommand, timeout: float) -> RemotingCommand:
        """Send a request and return its answer, whatever its code; raises as ``invoke_nowait`` and its future."""
        if self.write_paused:
            timeout = await self.room(command.code, timeout)
        answer = self.invoke_nowait(command, timeout)
        try:
            return await answer
        except asyncio.CancelledError:
            self.leave(command, answer)
            raise

    def leave(self, command: RemotingCommand, answer: asyncio.Future[RemotingCommand]) -> None:
        """Forget a request whose caller does not wait any more; its deadline still tells whether the peer is silent."""
        self._outstanding.leave(command.opaque, answer)

    def invoke_oneway(self, command: RemotingCommand) -> None:
        """Send a request that has no answer; raises ConnectionLost on a closed channel, Overloaded."""
        self._check_room(command)
        command.flag |= _ONEWAY
        self.write(command.encode())

    async def room(self, code: int, timeout: float) -> float:
        """Wait until a request has room; returns the seconds left of ``timeout``, raises RequestTimeout after them."""
        began = self._loop.time()
        try:
            async with asyncio.timeout(timeout):
                while self.write_paused:
                    await self._outbound.emptied()
        except TimeoutError:
            raise exchange.not_sent(code, self.remote_address, timeout, "the peer does not read") from None
        return max(0.0, timeout - (self._loop.time() - began))

    def _check_room(self, command: RemotingCommand) -> None:
        if self.closed:
            raise exchange.lost(command.code, self.remote_address, "the connection is closed")
        if self.write_paused:
            unsent = self._transport.get_write_buffer_size()
            if unsent > 2 * self._endpoint.limits.write_high_water_bytes:
                what = f"{request_name(command.code)} at {self.remote_address}"
                raise Overloaded(f"{what}: {unsent} bytes are not sent yet")

    def _check_silence(self, began: float) -> None:
        """End a connection that brought nothing since ``began``, when an answer to a request was due."""
        silent = exchange.silent_for(began, self.last_read, self._monotonic())
        if silent >= self._endpoint.limits.silent_timeout and self.state is not State.CLOSED:
            self._log_closing(f"silent for {silent:.1f} s")
            self.abort()

    def close(self) -> None:
        """Send what was written, then close."""
        if not self.closed:
            self._outbound.flush()
            self._happened(Event.END)
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what was not sent is lost."""
        self._happened(Event.END)
        self._outbound.clear()
        self._transport.abort()

    def finish(self) -> None:
        """Send what was written and let the peer take it, then close: what it goes on sending is dropped."""
        if not self.closed:
            self._outbound.flush()
            self._happened(Event.END)
            if self._stream is not None:
                self._stream.direct = False
            quiet = self._monotonic() - max(self.last_read, self._outbound.last_written)
            Lingering(self._transport, quiet, self.connection_lost)

    def check_idle(self, now: float) -> None:
        """Close the connection where it was silent for too long, or a frame takes too long to arrive."""
        limits = self._endpoint.limits
        since = self._inbound.since
        if now - max(self.last_read, self._outbound.last_written) >= limits.idle_timeout:
            reason = "idle"
        elif since is not None and not self._reading_stopped and now - since >= limits.partial_frame_timeout:
            reason = "a frame did not arrive in time"
        else:
            return
        self._log_closing(reason)
        self.abort()

    def _log_closing(self, reason: str) -> None:
        name = self._endpoint.name
        logger.info("connection closed endpoint=%s remote=%s reason=%s", name, self.remote_address, reason)
