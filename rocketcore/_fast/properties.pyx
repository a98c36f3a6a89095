"""Property strings, which carry a message's properties on the wire and in the log, and the text that they are made of.

property  name U+0001 value U+0002, the last U+0002 optional; a pair without name or value does not count
RocketMQ  common/message/MessageDecoder.java
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t

from rocketcore._fast.buffers cimport Borrowed, borrow_bytes, give_back
from rocketcore._fast.record cimport rc_next_property, rc_property, rc_property_reader, rc_read_properties
from rocketcore._fast.text cimport replace_surrogates, to_str


def decode_properties(data):
    """Return the properties of a message as a dict; of a name that comes twice the last pair.

    data      property string in UTF-8, bytes-like; malformed text is decoded as Java does, malformed pairs are dropped
    RocketMQ  common/message/MessageDecoder.java ``string2messageProperties``
    """
    cdef Borrowed held
    cdef dict properties = {}
    cdef rc_property_reader reader
    cdef rc_property found
    held.count = 0
    try:
        source = borrow_bytes(&held, data)
        reader = rc_read_properties(<const uint8_t*>source.buf, source.len)
        while rc_next_property(&reader, &found):
            properties[to_str(found.name, found.name_length)] = to_str(found.value, found.value_length)
        return properties
    finally:
        give_back(&held)


def encode_properties(properties):
    """Return the property string of a mapping of str to str or None, each pair ended by U+0002; None is not written.

    Neither length nor separators inside the texts are checked: that is the client's rule, not the format's.

    RocketMQ  common/message/MessageDecoder.java ``messageProperties2String`` (5.2 and later)
    """
    cdef list parts = []
    for name, value in properties.items():
        if value is not None:
            parts += (name, "\x01", value, "\x02")
    text = "".join(parts)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return replace_surrogates(text).encode()


def decode_text(data):
    """Decode UTF-8 as Java's ``String(byte[], UTF_8)``: never fails, and replaces malformed input piece by piece."""
    cdef Borrowed held
    held.count = 0
    try:
        source = borrow_bytes(&held, data)
        return to_str(<const uint8_t*>source.buf, source.len)
    finally:
        give_back(&held)


def java_hash(str text not None):
    """Return Java's ``String.hashCode`` of a text, an int32, over its UTF-16 units."""
    cdef uint32_t value = 0, unit
    for character in text:
        unit = <Py_UCS4>character
        if unit > 0xffff:
            value = 31 * value + (0xd7c0 + (unit >> 10))
            unit = 0xdc00 | (unit & 0x3ff)
        value = 31 * value + unit
    return <int32_t>value
