"""The life of one connection as a table: what it may be asked to do, and what it is after each event.

state     what is written to it                              what it reads
NEW       nothing may be: there is no transport              nothing comes
OPEN      leaves at the end of the read or of the turn       is served
FULL      waits in the transport's buffer: the peer takes    a client serves it, for answers free room; a server stops
          too little, and who can wait does                  reading, so that the peer cannot ask without end
CLOSING   is dropped; what was written before is on its way  is dropped
CLOSED    is dropped                                         nothing comes

h11's ``_state.py`` is the model. What is no row of the table cannot happen, and raises KeyError.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["TRANSITIONS", "Event", "State"]


class State(Enum):
    """What a connection is."""

    NEW = "new"
    OPEN = "open"
    FULL = "full"
    CLOSING = "closing"
    CLOSED = "closed"


class Event(Enum):
    """What happens to a connection: its transport's events, and ``END`` for a close, a finish or an abort of ours."""

    CONNECTED = "connected"
    BUFFER_FULL = "buffer full"
    BUFFER_EMPTIED = "buffer emptied"
    END = "end"
    LOST = "lost"


TRANSITIONS: Final = {
    (State.NEW, Event.CONNECTED): State.OPEN,
    (State.OPEN, Event.BUFFER_FULL): State.FULL,
    (State.OPEN, Event.BUFFER_EMPTIED): State.OPEN,
    (State.OPEN, Event.END): State.CLOSING,
    (State.OPEN, Event.LOST): State.CLOSED,
    (State.FULL, Event.BUFFER_FULL): State.FULL,
    (State.FULL, Event.BUFFER_EMPTIED): State.OPEN,
    (State.FULL, Event.END): State.CLOSING,
    (State.FULL, Event.LOST): State.CLOSED,
    # What was written before goes on leaving, and a close may still be cut short.
    (State.CLOSING, Event.BUFFER_FULL): State.CLOSING,
    (State.CLOSING, Event.BUFFER_EMPTIED): State.CLOSING,
    (State.CLOSING, Event.END): State.CLOSING,
    (State.CLOSING, Event.LOST): State.CLOSED,
    # A stop may cut a connection that was lost in the same turn of the loop.
    (State.CLOSED, Event.END): State.CLOSED,
}
