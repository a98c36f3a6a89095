"""The topics of a broker's registration, read straight from its body into a dict of names to shared numbers, and what
they change in a table.

json      {"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"topicName":"T","readQueueNums":8,"writeQueueNums":8,
          "perm":6,"topicSysFlag":0,…},…},…},…}: keys in any order, standard JSON; a topic with a key that Java does not
          write, without its name or one of the first three numbers, with an escape in its name or more than 32,767
          bytes of it, or under another key than its name is *unusual*, and so is a body with an escape in a key outside
          of the table
text      length i32, then "name read write perm filterType" and perhaps attributes, separated by one blank each
numbers   read, write, perm, sysFlag: equal ones of one call are one object, as most topics of a broker have the same
known     the table that the topics go to. Brokers name mostly the topics that are there already, in the order in which
          they first came: whose turn it is in the table is compared first, and then no name is decoded or hashed
RocketMQ  remoting/protocol/body/RegisterBrokerBody.java 5.5.0
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem, PyDict_Next
from cpython.ref cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t, uint8_t
from libc.string cimport memchr, memcmp

from rocketcore._fast.command cimport Text, is_text, rc_is_utf8, read_int, read_string, read_word, skip_ext, skip_space


cdef extern from "rc_bytes.h" nogil:
    bint rc_fits(const uint8_t* at, int64_t length, const uint8_t* end)
    int32_t rc_get_i32(const uint8_t* at)
    bint rc_get_decimal(const uint8_t* at, const uint8_t* end, int64_t low, int64_t high, int64_t* value)

cdef extern from "Python.h":
    bint PyUnicode_CheckExact(PyObject* text)
    bint PyUnicode_IS_COMPACT_ASCII(PyObject* text)
    Py_ssize_t PyUnicode_GET_LENGTH(PyObject* text)
    const void* PyUnicode_DATA(PyObject* text)

cdef enum:
    NAME_MAX = 0x7FFF
    LOOK_AHEAD = 16  # names of a table that are compared before one is looked up: there may be topics in between
    PATIENCE = 64    # topics in a row that are looked up before it is clear that the table has another order
    READ = 1
    WRITE = 2
    PERM = 4
    NAME = 8
    NEEDED = 15


cdef struct Topic:
    Text name
    int64_t read
    int64_t write
    int64_t perm
    int64_t sys_flag


cdef inline const uint8_t* after_key(const uint8_t* at, const uint8_t* end, Text* key) noexcept nogil:
    """Read a key and its colon; returns where its value begins, or NULL."""
    at = read_string(at, end, key)
    if at == NULL:
        return NULL
    at = skip_space(at, end)
    if at == end or at[0] != c":":
        return NULL
    return skip_space(at + 1, end)


cdef inline const uint8_t* after_value(const uint8_t* at, const uint8_t* end, bint* last) noexcept nogil:
    """Pass what separates two entries; ``last`` where the object ends there. NULL if neither follows."""
    at = skip_space(at, end)
    if at == end:
        return NULL
    last[0] = at[0] == c"}"
    if last[0]:
        return at + 1
    if at[0] != c",":
        return NULL
    return skip_space(at + 1, end)


cdef const uint8_t* skip_value(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Pass a value of standard JSON; what is none may be passed too, and whoever reads the rest will notice."""
    cdef Text text
    cdef Py_ssize_t depth = 0
    while at < end:
        if at[0] == c'"':
            at = read_string(at, end, &text)
            if at == NULL:
                return NULL
        elif at[0] == c"{" or at[0] == c"[":
            depth += 1
            at += 1
            continue
        elif at[0] == c"}" or at[0] == c"]":
            if depth == 0:
                return at
            depth -= 1
            at += 1
        elif depth == 0 and at[0] == c",":
            return at
        else:
            at += 1
            continue
        if depth == 0:
            return at
    return NULL


cdef const uint8_t* read_flag(const uint8_t* at, const uint8_t* end) noexcept nogil:
    return read_word(at, end, "true" if at < end and at[0] == c"t" else "false")


cdef inline bint is_plain(const Text* name) noexcept nogil:
    return not name.escaped and 0 < name.end - name.start <= NAME_MAX


cdef const uint8_t* read_topic(const uint8_t* at, const uint8_t* end, Topic* topic) noexcept nogil:
    """Read one topic's object; returns the byte after it, NULL if it is unusual."""
    cdef Text key, text
    cdef int seen = 0
    cdef bint last = False
    topic.sys_flag = 0
    if at == end or at[0] != c"{":
        return NULL
    at = skip_space(at + 1, end)
    while not last:
        at = after_key(at, end, &key)
        if at == NULL:
            return NULL
        if is_text(&key, "topicName", 9):
            seen |= NAME
            at = read_string(at, end, &topic.name)
            if at != NULL and not is_plain(&topic.name):
                return NULL
        elif is_text(&key, "readQueueNums", 13):
            seen |= READ
            at = read_int(at, end, &topic.read)
        elif is_text(&key, "writeQueueNums", 14):
            seen |= WRITE
            at = read_int(at, end, &topic.write)
        elif is_text(&key, "perm", 4):
            seen |= PERM
            at = read_int(at, end, &topic.perm)
        elif is_text(&key, "topicSysFlag", 12):
            at = read_int(at, end, &topic.sys_flag)
        elif is_text(&key, "topicFilterType", 15):
            at = read_string(at, end, &text)
        elif is_text(&key, "order", 5):
            at = read_flag(at, end)
        elif is_text(&key, "attributes", 10):
            at = skip_ext(at, end, &text)
        else:
            return NULL
        if at == NULL:
            return NULL
        at = after_value(at, end, &last)
        if at == NULL:
            return NULL
    return at if seen == NEEDED else NULL


cdef object numbers_of(const Topic* topic, dict known, object numbers):
    key = (topic.read, topic.write, topic.perm, topic.sys_flag)
    found = known.get(key)
    if found is None:
        found = known[key] = numbers(*key)
    return found


cdef inline bint is_called(PyObject* text, const Text* name) noexcept:
    """Compare a key with a topic's name; keys that are not ASCII are left to the dict."""
    cdef Py_ssize_t length = name.end - name.start
    return (
        PyUnicode_CheckExact(text) and PyUnicode_IS_COMPACT_ASCII(text) and PyUnicode_GET_LENGTH(text) == length
        and memcmp(PyUnicode_DATA(text), name.start, length) == 0
    )


cdef class _Topics:
    """Collects topics; the numbers of the one before are at hand, and the place in the table where it was found."""

    cdef dict topics
    cdef dict shared          # read, write, perm and system flag → numbers
    cdef dict known
    cdef object numbers
    cdef object same
    cdef object latest        # numbers of the topic before …
    cdef Topic before         # … from here
    cdef object latest_old    # what the table has for it …
    cdef bint latest_same     # … and whether ``same`` said so of these two
    cdef Py_ssize_t place
    cdef int patience

    def __cinit__(self, numbers, known, same):
        self.topics = {}
        self.shared = {}
        self.known = known
        self.numbers = numbers
        self.same = same
        self.latest = self.latest_old = None
        self.place = 0
        self.patience = PATIENCE if known else 0

    cdef object find(self, const Text* name, PyObject** value):
        """Return a name as an object, and what the table has for it, borrowed; NULL for nothing."""
        cdef PyObject* key
        cdef Py_ssize_t place = self.place
        cdef int _ahead
        if self.patience:
            for _ahead in range(LOOK_AHEAD):
                if not PyDict_Next(self.known, &place, &key, value):
                    break
                if is_called(key, name):
                    self.place = place
                    self.patience = PATIENCE
                    return <object>key
            self.patience -= 1
        found = PyUnicode_DecodeUTF8(<const char*>name.start, name.end - name.start, NULL)
        value[0] = NULL if self.known is None else PyDict_GetItem(self.known, found)
        return found

    cdef int add(self, const Topic* topic) except -1:
        cdef PyObject* old
        if (
            self.latest is None or topic.read != self.before.read or topic.write != self.before.write
            or topic.perm != self.before.perm or topic.sys_flag != self.before.sys_flag
        ):
            self.latest = numbers_of(topic, self.shared, self.numbers)
            self.before = topic[0]
            self.latest_old = None
        name = self.find(&topic.name, &old)
        if self.same is not None and old != NULL:
            if self.latest_old is not <object>old:
                self.latest_old = <object>old
                self.latest_same = self.same(self.latest_old, self.latest)
            if self.latest_same:
                if self.topics:
                    self.topics.pop(name, None)
                return 0
        self.topics[name] = self.latest
        return 0


cdef const uint8_t* read_like(const uint8_t* at, const uint8_t* end, const uint8_t* model, const uint8_t* model_end,
                              Topic* topic) noexcept nogil:
    """Read a topic's object whose bytes are those of ``model``, all but the name; NULL if they are not.

    model   the object that ``topic`` was read from, from its brace to ``model_end``; only the name of ``topic`` changes
    """
    cdef Text name
    cdef const uint8_t* after
    cdef Py_ssize_t lead = topic.name.start - model, rest = model_end - topic.name.end
    if end - at <= lead or memcmp(at, model, lead) != 0:
        return NULL
    after = read_string(at + lead - 1, end, &name)
    if after == NULL or not is_plain(&name):
        return NULL
    if end - name.end < rest or memcmp(name.end, topic.name.end, rest) != 0:
        return NULL
    topic.name = name
    return name.end + rest


cdef const uint8_t* read_table(const uint8_t* at, const uint8_t* end, _Topics topics) except? NULL:
    """Read the table, ``at`` is after its brace; returns the byte after it, NULL if it is unusual.

    A broker writes all topics alike, and most have the same numbers: each is compared with the one before first.
    """
    cdef Text key
    cdef Topic topic
    cdef const uint8_t* start
    cdef const uint8_t* model = NULL
    cdef const uint8_t* model_end = NULL
    cdef bint last = False
    at = skip_space(at, end)
    if at < end and at[0] == c"}":
        return at + 1
    while not last:
        start = after_key(at, end, &key)
        if start == NULL:
            return NULL
        at = read_like(start, end, model, model_end, &topic) if model != NULL else NULL
        if at == NULL:
            at = read_topic(start, end, &topic)
        if at == NULL:
            return NULL
        # What comes twice under one key is there once, as its last; a name may come under several.
        if not is_text(&key, <const char*>topic.name.start, topic.name.end - topic.name.start):
            return NULL
        model, model_end = start, at
        topics.add(&topic)
        at = after_value(at, end, &last)
        if at == NULL:
            return NULL
    return at


cdef const uint8_t* read_object(
    const uint8_t* at, const uint8_t* end, bint outer, _Topics topics, const uint8_t** table
) except? NULL:
    """Read the body or, inside of it, the wrapper, and in that the table; what else they hold is passed over.

    at        before the opening brace
    table     becomes where the table begins and ends
    returns   the byte after the object, NULL if it is unusual
    """
    cdef Text key
    cdef bint last = False
    if at == end or at[0] != c"{":
        return NULL
    at = skip_space(at + 1, end)
    while not last:
        at = after_key(at, end, &key)
        if at == NULL or key.escaped:
            return NULL
        if outer and is_text(&key, "topicConfigSerializeWrapper", 27):
            if table[0] != NULL:
                return NULL
            at = read_object(at, end, False, topics, table)
        elif not outer and is_text(&key, "topicConfigTable", 16):
            if table[0] != NULL or at == end or at[0] != c"{":
                return NULL
            table[0] = at
            at = read_table(at + 1, end, topics)
            table[1] = at
        else:
            at = skip_value(at, end)
        if at == NULL:
            return NULL
        at = after_value(at, end, &last)
        if at == NULL:
            return NULL
    return at


def read_topic_table(bytes body not None, numbers, dict known=None, same=None):
    """Read ``topicConfigTable`` of a registration in JSON.

    numbers   called as ``numbers(read, write, perm, sys_flag)``, once for each distinct four
    known     topics that are there already, by name: their names are used again. Calls may not change it
    same      called as ``same(known[name], numbers)`` for topics that ``known`` has; one of which it says so is left
              out of the result. It is asked once for topics in a row with the same two
    returns   (topics, start, end): a dict of topic name to numbers, where the last of a name wins, and the range of
              the table in ``body``; or None if the table is unusual, missing or there twice. What is outside of it has
              only been passed over: a caller reads it, and what it refuses there makes this result void
    """
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(body)
    cdef const uint8_t* end = data + PyBytes_GET_SIZE(body)
    cdef const uint8_t* table[2]
    cdef _Topics topics
    if not rc_is_utf8(data, end - data):
        return None
    topics = _Topics.__new__(_Topics, numbers, known, same)
    table[0] = table[1] = NULL
    if read_object(skip_space(data, end), end, True, topics, table) == NULL or table[0] == NULL:
        return None
    return topics.topics, table[0] - data, table[1] - data


def read_topic_texts(
    bytes data not None, Py_ssize_t position, Py_ssize_t count, numbers, dict known=None, same=None
):
    """Read topics of the compressed form, already inflated.

    position  where the first text's length word is
    count     how many there are, at most
    numbers, known, same  as for ``read_topic_table``; the system flag is 0, it does not travel
    returns   (topics, read, position): a dict of topic name to numbers, how many texts it took, and the first byte
              after them. It stops before a text that is not plain: cut, not UTF-8, of fewer than five words, without
              name or with one of more than 32,767 bytes, or with a number that is no int32
    raises    ValueError for a position outside of the data
    """
    cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const uint8_t* end = start + PyBytes_GET_SIZE(data)
    cdef const uint8_t* at
    cdef const uint8_t* word
    cdef const uint8_t* stop
    cdef int64_t* values[3]
    cdef Py_ssize_t taken = 0
    cdef int64_t length
    cdef int i
    cdef Topic topic
    cdef _Topics collected = _Topics.__new__(_Topics, numbers, known, same)
    if not 0 <= position <= end - start:
        raise ValueError(f"position {position} is not within the {end - start} bytes of data")
    at = start + position
    topic.sys_flag = 0
    topic.name.escaped = False
    values[0], values[1], values[2] = &topic.read, &topic.write, &topic.perm
    while taken < count and rc_fits(at, 4, end):
        length = rc_get_i32(at)
        word = at + 4
        if not rc_fits(word, length, end) or not rc_is_utf8(word, length):
            break
        topic.name.start = word
        topic.name.end = <const uint8_t*>memchr(word, c" ", length)
        if topic.name.end == NULL or not is_plain(&topic.name):
            break
        word = topic.name.end + 1
        for i in range(3):
            stop = <const uint8_t*>memchr(word, c" ", length - (word - at - 4))
            if stop == NULL or not rc_get_decimal(word, stop, INT32_MIN, INT32_MAX, values[i]):
                break
            word = stop + 1
        else:
            collected.add(&topic)
            at += 4 + length
            taken += 1
            continue
        break
    return collected.topics, taken, at - start


cdef class _Pairs:
    """Goes through topics and finds what ``known`` has for each, without a look-up where both are in one order."""

    cdef dict known
    cdef dict topics
    cdef PyObject* name
    cdef PyObject* old        # NULL for a topic that is not known
    cdef PyObject* value
    cdef Py_ssize_t place
    cdef Py_ssize_t known_place
    cdef int patience

    def __cinit__(self, dict known, dict topics):
        self.known = known
        self.topics = topics
        self.place = self.known_place = 0
        self.patience = PATIENCE

    cdef bint next(self):
        cdef PyObject* key
        cdef Py_ssize_t place = self.known_place
        cdef int _ahead
        if not PyDict_Next(self.topics, &self.place, &self.name, &self.value):
            return False
        if self.patience:
            for _ahead in range(LOOK_AHEAD):
                if not PyDict_Next(self.known, &place, &key, &self.old):
                    break
                if key == self.name:
                    self.known_place = place
                    self.patience = PATIENCE
                    return True
            self.patience -= 1
        self.old = PyDict_GetItem(self.known, <object>self.name)
        return True


def moves(dict known not None, dict topics not None):
    """Return the distinct pairs of what ``known`` has for a topic, None for nothing, and what ``topics`` has.

    Values are told apart by identity: equal ones that are two objects may make two pairs.
    """
    cdef set found = set()
    cdef _Pairs pairs = _Pairs.__new__(_Pairs, known, topics)
    cdef PyObject* latest_old = NULL
    cdef PyObject* latest_value = NULL
    while pairs.next():
        if pairs.value != latest_value or pairs.old != latest_old:
            latest_old, latest_value = pairs.old, pairs.value
            found.add((None if pairs.old == NULL else <object>pairs.old, <object>pairs.value))
    return found


def move(dict known not None, dict topics not None, dict target not None):
    """Give each topic what ``target`` has for its pair, as ``moves`` returns them; returns the names of what moved.

    target  (old, value) → new, None as old for a topic that is not known; where new is old nothing is done
    """
    cdef list moved = []
    cdef _Pairs pairs = _Pairs.__new__(_Pairs, known, topics)
    cdef object old, latest_old = None, latest_value = None, new = None
    while pairs.next():
        old = None if pairs.old == NULL else <object>pairs.old
        if new is None or old is not latest_old or <object>pairs.value is not latest_value:
            latest_old, latest_value = old, <object>pairs.value
            new = target[old, latest_value]
        if new is not old:
            known[<object>pairs.name] = new
            moved.append(<object>pairs.name)
    return moved
