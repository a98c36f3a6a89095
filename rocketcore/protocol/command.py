"""RemotingCommand: one request or one answer.

frame   total length i32 (of what follows) · type u8, header length u24 · header · body; big-endian
header  JSON object (type 0) or ROCKETMQ binary (type 1); both carry code, language, version, opaque, flag, remark and
        ext fields, text to text

RocketMQ: ``org.apache.rocketmq.remoting.protocol.RemotingCommand``.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Container
from typing import TYPE_CHECKING, Final, TypeVar

from rocketcore._fast import command as command_kernel
from rocketcore._fast.fields import Received, read_fields
from rocketcore.codes import (
    CURRENT_VERSION,
    FRAME_MAX_BYTES,
    LanguageCode,
    RemotingFlag,
    RequestCode,
    ResponseCode,
    SerializeType,
)
from rocketcore.errors import BrokerError, LocalProtocolError
from rocketcore.printable import shortened

if TYPE_CHECKING:
    from rocketcore.protocol.schema import Header

__all__ = ["RemotingCommand", "next_opaque", "request_name"]

H = TypeVar("H", bound="Header")

_RESPONSE: Final = int(RemotingFlag.RESPONSE)
_REMARK_CHARACTERS: Final = 4096
"""Of an answer's remark: it may name what was asked for, which may be as long as a frame."""
_ONEWAY: Final = int(RemotingFlag.ONEWAY)
_PYTHON: Final = int(LanguageCode.PYTHON)
_JSON: Final = int(SerializeType.JSON)
_MAX_BINARY_CODE: Final = 32767

_REQUEST_NAMES: Final = {int(code): name for name, code in RequestCode.__members__.items()}
"""For each request that is sent: to ask the enumeration takes seven times as long."""

_LENGTH: Final = struct.Struct(">I")

PLACED_BODY_BYTES: Final = 1 << 16
"""From this length on it is cheaper to send a body from where it lies than to copy it into its frame."""

_opaque: Final = itertools.count()


def next_opaque() -> int:
    """Return the next correlation id of this process: 0 to 2³¹ − 1, then again from 0."""
    return next(_opaque) & 0x7FFFFFFF


def request_name(code: int) -> str:
    """Name of a request code for messages, ``CODE_n`` where it has none."""
    return _REQUEST_NAMES.get(code) or f"CODE_{code}"


class RemotingCommand(Received):
    """A request or an answer; one that was received is read when it is asked for what it says.

    ``language`` is an ordinal of ``LanguageCode``, −1 where the sender named one that we do not know; ``body`` is empty
    where there is none; ``ext_fields`` is empty or None where there are none.

    A received command keeps alive all bytes that came with it. Whoever holds one beyond the turn of the loop in which
    it came calls ``detach()``, or ``drop()`` where the head is enough.
    """

    __slots__ = ()

    def __init__(
        self,
        code: int,
        *,
        language: int = _PYTHON,
        version: int = CURRENT_VERSION,
        opaque: int = 0,
        flag: int = 0,
        remark: str | None = None,
        ext_fields: dict[str, str] | None = None,
        body: bytes = b"",
        serialize_type: int = _JSON,
    ) -> None:
        self.code = code
        self.language = language
        self.version = version
        self.opaque = opaque
        self.flag = flag
        self.remark = remark
        self.ext_fields = ext_fields
        self.body = body
        self.serialize_type = serialize_type

    @classmethod
    def request(
        cls,
        code: int,
        header: Header | None = None,
        body: bytes | bytearray | memoryview = b"",
        *,
        oneway: bool = False,
        serialize_type: int = _JSON,
    ) -> RemotingCommand:
        """Make a request with a fresh opaque; a code beyond 16 bits is sent with a JSON header whatever was asked."""
        return cls(
            int(code),
            opaque=next_opaque(),
            flag=_ONEWAY if oneway else 0,
            ext_fields=header.to_ext_fields() if header is not None else None,
            body=bytes(body),
            serialize_type=int(serialize_type) if code <= _MAX_BINARY_CODE else _JSON,
        )

    @classmethod
    def response(
        cls,
        request: RemotingCommand,
        code: int = 0,
        remark: str | None = None,
        header: Header | None = None,
        body: bytes | bytearray | memoryview = b"",
    ) -> RemotingCommand:
        """Make the answer to a request: its opaque, its type of header; a long remark is cut."""
        return cls(
            int(code),
            opaque=request.opaque,
            flag=_RESPONSE,
            remark=None if remark is None else shortened(remark, _REMARK_CHARACTERS),
            ext_fields=header.to_ext_fields() if header is not None else None,
            body=bytes(body),
            serialize_type=request.serialize_type,
        )

    @property
    def is_response(self) -> bool:
        return bool(self.flag & _RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & _ONEWAY)

    def header(self, cls: type[H]) -> H:
        """Read the ext fields as a header; raises DecodeError naming the field that is missing or ill-typed."""
        values = read_fields(self, cls.table())
        return cls.from_ext_fields(self.ext_fields) if values is None else cls.of_values(values)

    def add_ext_field(self, name: str, value: str) -> None:
        """Set one ext field beside those of the header."""
        if self.ext_fields is None:
            self.ext_fields = {}
        self.ext_fields[name] = value

    def encode(self) -> bytes:
        """Return the whole frame; raises LocalProtocolError where it is longer than any peer accepts."""
        frame = self._frame(self.body)
        self._check_size(len(frame))
        return frame

    def pieces(self) -> bytes | list[bytes | memoryview]:
        """Return the frame; with a long body as what is before it and the body as it is. Raises as ``encode``."""
        body = self.body
        if len(body) < PLACED_BODY_BYTES:
            return self.encode()
        head = self._frame(b"")
        size = len(head) + len(body)
        self._check_size(size)
        return [_LENGTH.pack(size - _LENGTH.size) + head[_LENGTH.size :], body]

    def _frame(self, body: bytes) -> bytes:
        return command_kernel.encode_frame(
            self.code,
            self.language if self.language >= 0 else int(LanguageCode.OTHER),
            self.version,
            self.opaque,
            self.flag,
            self.remark,
            self.ext_fields,
            body,
            self.serialize_type,
        )

    def _check_size(self, size: int) -> None:
        if size > FRAME_MAX_BYTES:
            what = "answer" if self.is_response else request_name(self.code)
            raise LocalProtocolError(f"{what}: a frame of {size} bytes, {FRAME_MAX_BYTES} are allowed")

    def raise_for_code(self, address: str = "", what: str = "", accept: Container[int] = ()) -> None:
        """Raise the ``BrokerError`` of this answer's code, unless it is SUCCESS or in ``accept``."""
        if self.code != ResponseCode.SUCCESS and self.code not in accept:
            raise BrokerError.of(self.code, self.remark, address, what)

    def __repr__(self) -> str:
        if self.is_response:
            what = f"answer {self.code}"
        else:
            what = f"{'one-way ' if self.is_oneway else ''}{request_name(self.code)} ({self.code})"
        remark = f" remark={self.remark!r}" if self.remark else ""
        return f"<RemotingCommand {what} opaque={self.opaque}{remark} ext={self.ext_fields} body={len(self.body)}>"
