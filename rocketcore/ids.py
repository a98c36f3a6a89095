"""Names that are unique in the network: of clients and of messages.

Client id  ``ip@pid#nanos``, one per producer or consumer; a broadcasting consumer keeps a stable ``ip@name``.
UNIQ_KEY   of a message, made by its producer, or by the broker where it has none. Upper-case hex of:
           IPv4 or IPv6 address · process id, 16 bits · a random number of this process, 32 bits ·
           milliseconds since the month began, 32 bits · counter, 16 bits. 32 or 56 characters.

RocketMQ 5.5.0: ``MessageClientIDSetter``, ``ClientConfig.buildMQClientId``.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import re
import threading
import time
from collections.abc import Callable
from datetime import datetime

from rocketcore.addresses import host_text, outward_ip

__all__ = ["UniqKeys", "client_id", "is_offset_id", "new_uniq_key", "place_of", "uniq_key_of"]

_BACKWARDS_LIMIT_MILLIS = 1_000_000
_OFFSET_ID = re.compile(r"(?:[0-9A-F]{8}|[0-9A-F]{32})[0-9A-F]{24}")
_HEX = tuple(f"{byte:02X}" for byte in range(256))


def client_id(instance_name: str = "", unit_name: str = "") -> str:
    """Return a client id: unique in the network without ``instance_name``, stable with it."""
    name = instance_name or f"{os.getpid()}#{time.monotonic_ns()}"
    return "@".join(filter(None, (outward_ip(), name, unit_name)))


def is_offset_id(message_id: str) -> bool:
    """Whether an id has the form of an ``offset_msg_id``, which says where the message lies."""
    return _OFFSET_ID.fullmatch(message_id.upper()) is not None


def place_of(message_id: str) -> tuple[str, int] | None:
    """Return the broker's address and the place in its log that an ``offset_msg_id`` is made of, None for other ids."""
    if not is_offset_id(message_id):
        return None
    packed = bytes.fromhex(message_id)
    return host_text(packed[:-8]), int.from_bytes(packed[-8:], "big", signed=True)


def uniq_key_of(address: bytes, pid: int, process_number: int, millis: int, counter: int) -> str:
    """Return the UNIQ_KEY made of given parts; each number is cut to its width.

    A clock a little before the start of the month (less than about 17 minutes) counts as the start.
    """
    if -_BACKWARDS_LIMIT_MILLIS < millis < 0:
        millis = 0
    return (
        f"{address.hex().upper()}{pid & 0xFFFF:04X}{process_number & 0xFFFFFFFF:08X}"
        f"{millis & 0xFFFFFFFF:08X}{counter & 0xFFFF:04X}"
    )


class UniqKeys:
    """Makes the UNIQ_KEYs of one process; thread-safe.

    All but the counter is formatted once per 32,768 ids or per second, whichever comes first: a run of ids shares one
    stamp of the clock, and no two runs do, so ids differ even where the 16-bit counter comes round in a millisecond.
    """

    __slots__ = (
        "_address",
        "_clock",
        "_current",
        "_lock",
        "_next_month",
        "_next_number",
        "_number",
        "_pid",
        "_stamp",
        "_start",
    )

    _RUN_BITS = 15
    _STAMP_SECONDS = 1.0

    def __init__(
        self,
        address: str | None = None,
        *,
        pid: int | None = None,
        process_number: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._address = ipaddress.ip_address(address or outward_ip()).packed
        self._pid = os.getpid() if pid is None else pid
        self._number = int.from_bytes(os.urandom(4), "big") if process_number is None else process_number
        self._clock = clock
        self._next_number = itertools.count().__next__  # one step: threads need no lock for it
        self._current = (-1, 0.0, "")  # run, when its stamp is too old, all of an id but the counter
        self._lock = threading.RLock()  # guards the following; a signal's handler may come in and make an id too
        self._stamp = -1
        self._start = self._next_month = 0.0

    def next(self) -> str:
        """Return a new id."""
        number = self._next_number()
        run, expires, prefix = self._current
        if number >> self._RUN_BITS != run or self._clock() >= expires:
            prefix = self._turn(number >> self._RUN_BITS)
        return f"{prefix}{_HEX[number >> 8 & 0xFF]}{_HEX[number & 0xFF]}"

    def _turn(self, run: int) -> str:
        """Return a prefix with a new stamp, which the ids of ``run`` share from now on.

        A thread that was held up may have a number of a run that is over: the stamp is for that one alone.
        """
        now = self._clock()
        with self._lock:
            if now >= self._next_month or now < self._start:
                first = datetime.fromtimestamp(now).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
                following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
                self._start, self._next_month = first.timestamp(), following.timestamp()
                self._stamp = -1
            self._stamp = stamp = max(round((now - self._start) * 1000), self._stamp + 1)
            prefix = uniq_key_of(self._address, self._pid, self._number, stamp, 0)[:-4]
            if run >= self._current[0]:
                self._current = run, min(now + self._STAMP_SECONDS, self._next_month), prefix
            return prefix


class _ProcessKeys:
    """The one generator of this process, made at first use and made again in a child after ``fork()``."""

    def __init__(self) -> None:
        self.next: Callable[[], str] = self._first
        self._registered = False

    def _first(self) -> str:
        if not self._registered:
            self._registered = True
            os.register_at_fork(after_in_child=self._forget)
        self.next = UniqKeys().next
        return self.next()

    def _forget(self) -> None:
        self.next = self._first


_PROCESS_KEYS = _ProcessKeys()


def new_uniq_key() -> str:
    """Return a new message id of this process."""
    return _PROCESS_KEYS.next()
