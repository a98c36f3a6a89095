"""One connection of an event loop: frames in, handlers and outstanding requests, frames out.

What arrives in one read is looked at as a whole: the kernels find all frames and read all heads, then runs of one code
go to a run handler, answers to whoever waits, and the rest to general handlers. How what they write leaves is the
subject of ``outbound``.

Both ends may ask. Opaques of the two directions are independent: the response bit is looked at first.

RocketMQ: ``NettyRemotingAbstract``, ``NettyDecoder``, ``NettyEncoder``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from rocketcore._fast import command as command_kernel
from rocketcore._fast import frame as frame_kernel
from rocketcore.codes import CURRENT_VERSION, OVERLOAD, LanguageCode, RemotingFlag, ResponseCode, Version
from rocketcore.errors import (
    BrokerError,
    ConnectionLost,
    DecodeError,
    Overloaded,
    RequestTimeout,
    RocketError,
    TransportError,
)
from rocketcore.protocol.command import RemotingCommand, next_opaque, request_name
from rocketcore.protocol.frame import Assembler, Chunk, missing_bytes
from rocketcore.transport.endpoint import Endpoint, address_text
from rocketcore.transport.lingering import Lingering
from rocketcore.transport.outbound import Outbound
from rocketcore.transport.routes import Handler, RunHandler

__all__ = ["Channel"]

logger = logging.getLogger(__name__)

_CODE: Final = frame_kernel.CODE
_VERSION: Final = frame_kernel.VERSION
_OPAQUE: Final = frame_kernel.OPAQUE
_FLAG: Final = frame_kernel.FLAG
_STATUS: Final = frame_kernel.STATUS
_FRAME_START: Final = frame_kernel.FRAME_START
_SERIALIZE_TYPE: Final = frame_kernel.SERIALIZE_TYPE
_RESPONSE: Final = int(RemotingFlag.RESPONSE)
_ONEWAY: Final = int(RemotingFlag.ONEWAY)
_GO_AWAY_SINCE: Final = int(Version.V5_3_1)
_PLACED_BYTES: Final = 1 << 16
"""What is missing of a frame is received into its place if it is at least this much …"""
_PLACED_SHARE: Final = 16
"""… and at most this many times what is there: room is not given away for the mere claim of a length."""


class Channel(Outbound):
    """One connection.

    ``attributes`` belongs to whoever uses the channel. Nothing here may be called from another thread.
    """

    __slots__ = (
        "__weakref__",
        "_assembler",
        "_attributes",
        "_partial_bytes",
        "_partial_since",
        "_pending",
        "_placed_bytes",
        "_serving",
        "_stream",
        "last_read",
        "local_address",
        "remote_address",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._assembler = Assembler()
        self._attributes: dict[str, Any] | None = None
        self._partial_bytes = 0
        self._partial_since = 0.0
        self._pending: dict[int, tuple[asyncio.Future[RemotingCommand], asyncio.TimerHandle, int]] = {}
        self._placed_bytes = 0  # of the frame that the stream receives into its place
        self._serving = 0
        self._stream: Any = None  # the transport, where it is one whose responder may answer for this channel
        self.last_read = self.last_written
        self.local_address = ""
        self.remote_address = ""

    def __repr__(self) -> str:
        return f"<Channel {self.local_address} → {self.remote_address}{' closed' if self._closed else ''}>"

    @property
    def attributes(self) -> dict[str, Any]:
        if self._attributes is None:
            self._attributes = {}
        return self._attributes

    @property
    def in_flight(self) -> int:
        """Requests of ours that wait for an answer."""
        return len(self._pending)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.remote_address = address_text(transport.get_extra_info("peername"))
        self.attach(transport)

    def attach(self, transport: asyncio.BaseTransport) -> None:
        """Begin to use a connected transport; ``remote_address`` is known."""
        self._transport = transport
        if hasattr(transport, "direct"):
            self._stream = transport
            self._stream.direct = True
        self.local_address = address_text(transport.get_extra_info("sockname"))
        self._transport.set_write_buffer_limits(high=self._endpoint.limits.write_high_water_bytes)
        self._endpoint.channels.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._out.clear()
        self._endpoint.channels.discard(self)
        self._endpoint.partial_bytes -= self._partial_bytes
        cause = "the connection was closed" if exc is None else f"the connection broke: {exc}"
        self._fail_pending(lambda code: ConnectionLost(f"{request_name(code)} at {self.remote_address}: {cause}"))
        self._wake_writers()
        for callback in self._endpoint.close_callbacks:
            try:
                callback(self)
            except Exception:
                logger.exception("close callback failed endpoint=%s channel=%s", self._endpoint.name, self)

    def data_received(self, data: bytes) -> None:
        self.last_read = self._monotonic()
        self._placed_bytes = 0
        assembler = self._assembler
        whole = assembler.feed(data) if assembler.pending_bytes else data
        if whole is not None:
            self._read(whole)
        if assembler.pending_bytes or self._placed_bytes or self._partial_bytes:
            self._count_partial()

    def part_received(self, size: int) -> None:
        """Hear from the stream how much of the frame is there that it receives into its place."""
        self.last_read = self._monotonic()
        self._placed_bytes = size
        self._count_partial()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._endpoint.stop_reading_when_full and not self._closed:
            self._transport.resume_reading()
            self._partial_since = self._monotonic()
            # Frames that were read but not looked at yet; there may be no further read to bring them up.
            if self._assembler.pending_bytes:
                self._loop.call_soon(self._read_kept)

    # Reading

    def _read_kept(self) -> None:
        if not self._closed and not self._write_paused and (whole := self._assembler.feed(b"")) is not None:
            self._read(whole)
            self._count_partial()

    def _read(self, whole: bytes) -> None:
        endpoint = self._endpoint
        reader = endpoint.reader
        chunk = reader.chunk
        position = 0
        self._corked = True
        try:
            while not self._closed:
                end = reader.scan(whole, position)
                route = endpoint.routes.get(chunk.code)
                if (
                    route is not None
                    and route.run is not None
                    and end == len(whole)
                    and not endpoint.going_away
                    and chunk.count <= endpoint.max_runs.get(chunk.code, chunk.count)
                ):
                    # All that the read brought is one run, as nearly always on a hot path: no row is looked at here.
                    reply = self._run(route.run, chunk, 0, chunk.count)
                    if type(reply) is bytes and reply and not self._out and not self._closed:
                        self.last_written = self.last_read
                        self._transport.write(reply)
                    elif reply:
                        self.write(reply)
                    return
                served = self._dispatch(chunk)
                if served < chunk.count:
                    position = chunk.rows[served, _FRAME_START]
                    break
                position = end
                if chunk.count == 0 or position == len(whole):
                    break
        except DecodeError as error:
            self._log_closing(str(error))
            self._corked = False
            self.close()
            return
        finally:
            self._corked = False
            chunk.data = b""
            if self._out:
                self.flush()
        if position < len(whole):
            self._keep(whole, position)

    def _keep(self, whole: bytes, position: int) -> None:
        self._partial_since = max(self._partial_since, self.last_read)
        missing = missing_bytes(whole, position)
        there = len(whole) - position
        if self._stream is not None and _PLACED_BYTES <= missing <= _PLACED_SHARE * there and not self._closed:
            self._placed_bytes = there
            self._stream.expect(whole, position, missing)
        else:
            self._assembler.keep(whole, position)

    def _count_partial(self) -> None:
        endpoint = self._endpoint
        pending = self._assembler.pending_bytes + self._placed_bytes
        endpoint.partial_bytes += pending - self._partial_bytes
        self._partial_bytes = pending
        if self._stream is not None:
            self._stream.direct = not pending
        if endpoint.partial_bytes > endpoint.limits.max_partial_bytes and not self._closed:
            self._log_closing(f"{endpoint.partial_bytes} bytes of incomplete frames are held")
            self.abort()

    def _dispatch(self, chunk: Chunk) -> int:
        """Serve the rows of a chunk; returns how many, all of them unless the peer does not read its answers."""
        endpoint = self._endpoint
        heads, count = chunk.heads, chunk.count
        high_water = endpoint.limits.write_high_water_bytes
        index = 0
        while index < count and not self._closed:
            if heads[index, _STATUS]:
                self._serve(chunk.command(index))
                index += 1
            elif heads[index, _FLAG] & _RESPONSE:
                self._take_answer(chunk, index)
                index += 1
            else:
                code = heads[index, _CODE]
                route = endpoint.routes.get(code)
                if route is None or route.run is None or endpoint.going_away:
                    self._serve_row(chunk, index, code)
                    index += 1
                else:
                    last = index + 1
                    stop = min(count, index + endpoint.max_runs.get(code, count))
                    while (
                        last < stop
                        and heads[last, _CODE] == code
                        and not heads[last, _STATUS]
                        and not heads[last, _FLAG] & _RESPONSE
                    ):
                        last += 1
                    reply = self._run(route.run, chunk, index, last)
                    if reply:
                        self.write(reply)
                    index = last
            if self._out_bytes > high_water:
                self.flush()
                if self._write_paused and endpoint.stop_reading_when_full:
                    return index
        return count

    def _take_answer(self, chunk: Chunk, index: int) -> None:
        pending = self._pending.pop(chunk.heads[index, _OPAQUE], None)
        if pending is None:
            logger.debug("late answer remote=%s opaque=%d", self.remote_address, chunk.heads[index, _OPAQUE])
            return
        future, timer, _ = pending
        timer.cancel()
        if not future.done():
            future.set_result(chunk.command(index))

    # Serving

    def _run(self, handler: RunHandler, chunk: Chunk, first: int, last: int) -> bytes | list[bytes] | None:
        try:
            return handler(self, chunk, first, last)
        except Exception as error:
            logger.exception("run handler failed endpoint=%s remote=%s", self._endpoint.name, self.remote_address)
            for index in range(first, last):
                self._reply_to_row(chunk, index, ResponseCode.SYSTEM_ERROR, _failure_text(error))
            return None

    def _serve_row(self, chunk: Chunk, index: int, code: int) -> None:
        endpoint = self._endpoint
        if endpoint.going_away and chunk.heads[index, _VERSION] > _GO_AWAY_SINCE:
            self._reply_to_row(chunk, index, ResponseCode.GO_AWAY, "please go away")
        elif endpoint.going_away and not endpoint.takes_requests:
            return
        elif code not in endpoint.routes:
            self._reply_to_row(chunk, index, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, _not_supported(code))
        else:
            self._serve(chunk.command(index))

    def _reply_to_row(self, chunk: Chunk, index: int, code: int, remark: str) -> None:
        """Answer without building the request's command."""
        heads = chunk.heads
        if not heads[index, _FLAG] & _ONEWAY:
            self.write(
                command_kernel.encode_frame(
                    int(code),
                    int(LanguageCode.PYTHON),
                    CURRENT_VERSION,
                    heads[index, _OPAQUE],
                    _RESPONSE,
                    remark,
                    None,
                    b"",
                    chunk.rows[index, _SERIALIZE_TYPE],
                )
            )

    def serve(self, command: RemotingCommand, handler: Handler | None = None) -> None:
        """Serve a request by its general handler, or by ``handler``; for run handlers and the requests they meet."""
        self._serve(command, handler)

    def _serve(self, command: RemotingCommand, handler: Handler | None = None) -> None:
        """Serve one command by the general path."""
        if command.is_response:
            self._resolve(command)
            return
        endpoint = self._endpoint
        route = endpoint.routes.get(command.code)
        if endpoint.going_away and command.version > _GO_AWAY_SINCE:
            self._reply(command, RemotingCommand.response(command, ResponseCode.GO_AWAY, "please go away"))
            return
        if endpoint.going_away and not endpoint.takes_requests:
            return
        if route is None:
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            self._reply(command, RemotingCommand.response(command, code, _not_supported(command.code)))
            return
        if self._serving >= endpoint.limits.max_in_flight or len(endpoint.tasks) >= endpoint.limits.max_serving:
            self._reply(command, RemotingCommand.response(command, ResponseCode.SYSTEM_BUSY, OVERLOAD))
            return
        try:
            for hook in endpoint.hooks:
                hook.before_request(self.remote_address, command)
            result = route.serve(self, command) if handler is None else handler(self, command)
        except Exception as error:
            result = self._failure(command, error)
        if result is None or isinstance(result, RemotingCommand):
            self._finish(command, result)
            return
        command.detach()
        self._serving += 1
        task = self._loop.create_task(self._serve_later(command, result), name=f"{endpoint.name}-{command.code}")
        endpoint.tasks.add(task)
        task.add_done_callback(endpoint.tasks.discard)

    async def _serve_later(self, command: RemotingCommand, result: Awaitable[RemotingCommand | None]) -> None:
        try:
            response = await result
        except asyncio.CancelledError as error:
            # Where nobody cancelled this task, it is the end of something that the handler waited for.
            this = asyncio.current_task()
            if this is None or this.cancelling():
                raise
            response = self._failure(command, RuntimeError(f"what the handler waited for was cancelled: {error!r}"))
        except Exception as error:
            response = self._failure(command, error)
        finally:
            self._serving -= 1
        self._finish(command, response)

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
        if isinstance(error, BrokerError):
            return RemotingCommand.response(command, error.code, error.remark)
        if not isinstance(error, RocketError):
            logger.error(
                "request failed endpoint=%s remote=%s request=%s",
                self._endpoint.name,
                self.remote_address,
                request_name(command.code),
                exc_info=error,
            )
        return RemotingCommand.response(command, ResponseCode.SYSTEM_ERROR, _failure_text(error))

    def _reply(self, request: RemotingCommand, response: RemotingCommand | None) -> None:
        if response is None or request.is_oneway or self._closed:
            return
        response.opaque = request.opaque
        response.flag |= _RESPONSE
        try:
            frame = response.encode()
        except Exception as error:  # too long, or with a field that is no text
            frame = self._failure(request, error).encode()
        self.write(frame)

    def send(self, command: RemotingCommand) -> None:
        """Send a command, for example an answer that was held back."""
        self.write(command.encode())

    # Asking

    def invoke_nowait(self, command: RemotingCommand, timeout: float) -> asyncio.Future[RemotingCommand]:
        """Send a request and return the future of its answer, which fails with RequestTimeout or ConnectionLost.

        raises  ConnectionLost on a closed channel, Overloaded where too many requests or bytes are outstanding
        """
        self._check_room(command)
        if len(self._pending) >= self._endpoint.limits.max_in_flight:
            raise Overloaded(f"{self.remote_address}: {len(self._pending)} requests are outstanding")
        if command.opaque in self._pending:
            command.opaque = next_opaque()
        frame = command.encode()
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        began = self._endpoint.clock.monotonic()
        timer = self._loop.call_later(timeout, self._expire, future, command.opaque, command.code, timeout, began)
        self._pending[command.opaque] = future, timer, command.code
        self.write(frame)
        return future

    async def invoke(self, command: RemotingCommand, timeout: float) -> RemotingCommand:
        """Send a request and return its answer, whatever its code; raises as ``invoke_nowait`` and its future."""
        if self._write_paused:
            timeout = await self.room(command.code, timeout)
        future = self.invoke_nowait(command, timeout)
        opaque = command.opaque
        try:
            return await future
        except asyncio.CancelledError:
            pending = self._pending.get(opaque)
            if pending is not None and pending[0] is future:
                # Its timer goes on: at the deadline it finds out whether the peer is silent.
                del self._pending[opaque]
            raise

    async def room(self, code: int, timeout: float) -> float:
        """Wait until the peer has taken enough of what was written for a request of ``code``; returns the seconds left.

        raises  RequestTimeout after ``timeout`` seconds
        """
        began = self._loop.time()
        try:
            async with asyncio.timeout(timeout):
                await self.drain()
        except TimeoutError:
            what = f"{request_name(code)} at {self.remote_address}"
            raise RequestTimeout(f"{what}: not sent within {timeout:g} s, the peer does not read") from None
        return max(0.0, timeout - (self._loop.time() - began))

    def invoke_oneway(self, command: RemotingCommand) -> None:
        """Send a request that has no answer; raises ConnectionLost on a closed channel, Overloaded."""
        self._check_room(command)
        command.flag |= _ONEWAY
        self.write(command.encode())

    def _check_room(self, command: RemotingCommand) -> None:
        if self._closed:
            raise ConnectionLost(f"{request_name(command.code)} at {self.remote_address}: the connection is closed")
        if self._write_paused:
            unsent = self._transport.get_write_buffer_size()
            if unsent > 2 * self._endpoint.limits.write_high_water_bytes:
                what = f"{request_name(command.code)} at {self.remote_address}"
                raise Overloaded(f"{what}: {unsent} bytes are not sent yet")

    def _resolve(self, command: RemotingCommand) -> None:
        pending = self._pending.pop(command.opaque, None)
        if pending is not None:
            pending[1].cancel()
            if not pending[0].done():
                pending[0].set_result(command)

    def _expire(
        self, future: asyncio.Future[RemotingCommand], opaque: int, code: int, timeout: float, began: float
    ) -> None:
        """End a request at its deadline; its caller may have left before, and the connection ended."""
        pending = self._pending.get(opaque)
        if pending is not None and pending[0] is future:
            del self._pending[opaque]
        if not future.done():
            what = f"{request_name(code)} at {self.remote_address}"
            future.set_exception(RequestTimeout(f"{what}: no answer within {timeout:g} s"))
        if self not in self._endpoint.channels:
            return
        silent = self._endpoint.clock.monotonic() - max(began, self.last_read)
        if self.last_read < began and silent >= self._endpoint.limits.silent_timeout:
            self._log_closing(f"silent for {silent:.1f} s")
            self.abort()

    def _fail_pending(self, error: Callable[[int], TransportError]) -> None:
        pending, self._pending = self._pending, {}
        for future, timer, code in pending.values():
            timer.cancel()
            if not future.done():
                future.set_exception(error(code))

    # Ending

    def finish(self) -> None:
        """Send what was written and let the peer take it, then close: what it goes on sending is dropped."""
        if not self._closed:
            self._corked = False
            self.flush()
            self._closed = True
            if self._stream is not None:
                self._stream.direct = False
            Lingering(self._transport, self._monotonic() - max(self.last_read, self.last_written), self.connection_lost)

    def check_idle(self, now: float) -> None:
        """Close the connection where it was silent for too long, or a frame takes too long to arrive."""
        limits = self._endpoint.limits
        if now - max(self.last_read, self.last_written) >= limits.idle_timeout:
            reason = "idle"
        elif (
            self._partial_bytes
            and not (self._write_paused and self._endpoint.stop_reading_when_full)  # then it is us who do not read
            and now - self._partial_since >= limits.partial_frame_timeout
        ):
            reason = "a frame did not arrive in time"
        else:
            return
        self._log_closing(reason)
        self.abort()

    def _log_closing(self, reason: str) -> None:
        name = self._endpoint.name
        logger.info("connection closed endpoint=%s remote=%s reason=%s", name, self.remote_address, reason)


def _failure_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _not_supported(code: int) -> str:
    return f" request type {code} not supported"
