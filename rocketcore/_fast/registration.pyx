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
shape     how a topic is written, all but its name: a broker writes them all alike, and few have other numbers. One
          topic of a shape is parsed, the others are compared with it; one that has the table's next name, and there
          what its shape says, costs this comparison and nothing else
RocketMQ  remoting/protocol/body/RegisterBrokerBody.java 5.5.0
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem, PyDict_Next
from cpython.ref cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t, uint8_t
from libc.string cimport memchr, memset

from rocketcore._fast.command cimport Text, is_text, rc_is_utf8, read_int, read_string, read_word, skip_ext, skip_space


cdef extern from "rc_bytes.h" nogil:
    bint rc_fits(const uint8_t* at, int64_t length, const uint8_t* end)
    int32_t rc_get_i32(const uint8_t* at)
    bint rc_get_decimal(const uint8_t* at, const uint8_t* end, int64_t low, int64_t high, int64_t* value)

cdef extern from "rc_same.h" nogil:
    bint rc_same(const uint8_t* a, const uint8_t* b, Py_ssize_t length)
    bint rc_is_name(const uint8_t* name, Py_ssize_t length, const uint8_t* text)

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX
    bint PyUnicode_CheckExact(PyObject* text)
    bint PyUnicode_IS_COMPACT_ASCII(PyObject* text)
    Py_ssize_t PyUnicode_GET_LENGTH(PyObject* text)
    const void* PyUnicode_DATA(PyObject* text)

cdef enum:
    NAME_MAX = 0x7FFF
    LOOK_AHEAD = 4    # names of a table that are compared before one is looked up: there may be others in between …
    WIDER = 6         # … twice as many after a topic that was not found, for so many in a row
    MOVES_AHEAD = 16  # the same for names that are compared by identity
    PATIENCE = 64     # topics in a row that are looked up before it is clear that the table has another order
    SHAPES = 8        # that are kept; the oldest goes first
    ASKED = 8         # answers of ``same`` that a shape keeps
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


# How topics are written that differ in nothing but the name, and what that says of them.
cdef struct Shape:
    const uint8_t* middle   # json: from behind the name as a key to the name in the object; text: nothing
    const uint8_t* rest     # from behind the name to where the next name, or its length word, begins
    Py_ssize_t middle_length
    Py_ssize_t rest_length
    PyObject* numbers       # borrowed
    PyObject* asked[ASKED]  # what the table has for topics of this shape …
    bint same[ASKED]        # … and whether ``same`` said so of that and the numbers


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


cdef inline bint is_ascii(PyObject* text) noexcept:
    return PyUnicode_CheckExact(text) and PyUnicode_IS_COMPACT_ASCII(text)


cdef inline size_t slot_of(PyObject* old) noexcept nogil:
    return (<size_t>old >> 6) % ASKED


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


cdef inline const uint8_t* after_like(
    const Shape* shape, const uint8_t* name, Py_ssize_t length, const uint8_t* end, bint json
) noexcept nogil:
    """Pass a topic, from its name on, that is written like those of ``shape``; NULL if it is not."""
    cdef const uint8_t* at = name + length
    if end - at < shape.middle_length + (length if json else 0) + shape.rest_length:
        return NULL
    if json:
        if not rc_same(at, shape.middle, shape.middle_length):
            return NULL
        at += shape.middle_length
        if not rc_same(at, name, length):
            return NULL
        at += length
    elif rc_get_i32(name - 4) != length + shape.rest_length:
        return NULL
    return at + shape.rest_length if rc_same(at, shape.rest, shape.rest_length) else NULL


@cython.final
cdef class _Topics:
    """Collects topics, and keeps how they are written and the place in the table where the last one was found."""

    cdef dict topics
    cdef dict shared          # read, write, perm and system flag → numbers
    cdef dict known
    cdef object numbers
    cdef object same
    cdef bint json
    cdef Shape shapes[SHAPES]
    cdef int shape_count
    cdef int latest           # shape of the topic before
    cdef int oldest
    cdef Py_ssize_t place
    cdef int misses           # topics in a row that were not found in the table from this place on
    cdef PyObject* turn       # name of the topic at hand if it was found there …
    cdef PyObject* turn_old   # … and what the table has for it; both borrowed
    cdef bint strays          # ``topics`` may have names whose turn in the table is still to come

    def __cinit__(self, numbers, known, same, bint json):
        self.topics = {}
        self.shared = {}
        self.known = {} if known is None else known
        self.numbers = numbers
        self.same = same
        self.json = json
        self.shape_count = self.latest = self.oldest = 0
        self.place = 0
        self.misses = 0
        self.turn = self.turn_old = NULL
        self.strays = False

    cdef inline Shape* find_shape(
        self, const uint8_t* name, Py_ssize_t length, const uint8_t* end, const uint8_t** after
    ) noexcept:
        """Return the shape that a topic has, and the byte after it; NULL if it is none of those."""
        cdef int _try, tried = self.latest
        for _try in range(self.shape_count):
            after[0] = after_like(&self.shapes[tried], name, length, end, self.json)
            if after[0] != NULL:
                self.latest = tried
                return &self.shapes[tried]
            tried = tried + 1 if tried + 1 < self.shape_count else 0
        return NULL

    cdef Shape* add_shape(
        self, const Topic* topic, const uint8_t* middle, Py_ssize_t middle_length, const uint8_t* end
    ) except NULL:
        """Keep how a topic is written, ``end`` is where the next one's name or length word begins."""
        cdef Shape* shape
        numbers = numbers_of(topic, self.shared, self.numbers)
        if self.shape_count < SHAPES:
            self.latest = self.shape_count
            self.shape_count += 1
        else:
            self.latest = self.oldest
            self.oldest = (self.oldest + 1) % SHAPES
        shape = &self.shapes[self.latest]
        memset(shape, 0, sizeof(Shape))
        shape.middle, shape.middle_length = middle, middle_length
        shape.rest, shape.rest_length = topic.name.end, end - topic.name.end
        shape.numbers = <PyObject*>numbers
        return shape

    cdef const uint8_t* pass_same(
        self, const uint8_t* at, const uint8_t* end, Py_ssize_t* taken, Py_ssize_t count
    ) except NULL:
        """Pass topics whose turn it is in the table, and which are as it has them; returns where the next one begins.

        Nothing is decoded, looked up or made for them. They are written like topics that were read before, so that all
        that is left to know of them is whether the name is the one expected. The topic where this ends is ``turn`` if
        the table has it here, too, but not as it is.
        """
        cdef dict known = self.known
        cdef bint json = self.json, strays = self.strays
        cdef uint8_t closing = c'"' if json else c" "
        cdef Shape* shape = &self.shapes[self.latest] if self.shape_count else NULL
        cdef PyObject* key
        cdef PyObject* old
        cdef PyObject* same = NULL  # of this shape
        cdef const uint8_t* name = at if json else at + 4
        cdef const uint8_t* after
        cdef Py_ssize_t length, place = self.place, left = count - taken[0]
        cdef int misses = self.misses, tries = LOOK_AHEAD << misses if misses <= WIDER else LOOK_AHEAD
        self.turn = NULL
        if misses == PATIENCE:
            return at
        while left > 0 and PyDict_Next(known, &place, &key, &old):
            length = PyUnicode_GET_LENGTH(key) if is_ascii(key) else 0
            if not (
                0 < length <= NAME_MAX and length < end - name and name[length] == closing
                and rc_is_name(<const uint8_t*>PyUnicode_DATA(key), length, name)
            ):
                tries -= 1
                if tries == 0:
                    misses += 1
                    break
                continue
            self.place = place
            misses = 0
            tries = LOOK_AHEAD
            after = after_like(shape, name, length, end, json) if shape != NULL else NULL
            if after == NULL:
                shape = self.find_shape(name, length, end, &after)
                same = NULL
            if shape == NULL or (
                old != same and (shape.asked[slot_of(old)] != old or not shape.same[slot_of(old)])
            ):
                self.turn, self.turn_old = key, old
                break
            same = old
            if strays:
                self.topics.pop(<object>key, None)
            at = after
            name = at if json else at + 4
            left -= 1
        else:
            misses += 1
        taken[0] = count - left
        self.misses = misses
        return at

    cdef object find(self, const Text* name, PyObject** value):
        """Return a name as an object, and what the table has for it, borrowed; NULL for nothing."""
        if self.turn != NULL:
            value[0] = self.turn_old
            return <object>self.turn
        found = PyUnicode_DecodeUTF8(<const char*>name.start, name.end - name.start, NULL)
        value[0] = PyDict_GetItem(self.known, found)
        return found

    cdef bint is_same(self, Shape* shape, PyObject* old) except -1:
        """Ask whether a topic of a shape may be left out, once for what the table has for several of them."""
        cdef size_t slot = slot_of(old)
        if shape.asked[slot] != old:
            shape.same[slot] = self.same(<object>old, <object>shape.numbers)
            shape.asked[slot] = old
        return shape.same[slot]

    cdef int add(self, const Text* name, Shape* shape) except -1:
        cdef PyObject* old
        found = self.find(name, &old)
        if old != NULL and self.same is not None and self.is_same(shape, old):
            if self.strays or self.turn == NULL:
                self.topics.pop(found, None)
            return 0
        self.topics[found] = <object>shape.numbers
        if old != NULL and self.turn == NULL:
            self.strays = True
        return 0


cdef const uint8_t* read_table(const uint8_t* at, const uint8_t* end, _Topics topics) except? NULL:
    """Read the table, ``at`` is after its brace; returns the byte after it, NULL if it is unusual or not UTF-8."""
    cdef Text key
    cdef Topic topic
    cdef Shape* shape
    cdef const uint8_t* after
    cdef Py_ssize_t taken = 0
    cdef bint last = False
    at = skip_space(at, end)
    if at < end and at[0] == c"}":
        return at + 1
    while not last:
        if at == end or at[0] != c'"':
            return NULL
        # A broker writes all topics alike: what follows one is the quote that opens the key of the next.
        at = topics.pass_same(at + 1, end, &taken, PY_SSIZE_T_MAX)
        after = after_key(at - 1, end, &key)
        if after == NULL or not is_plain(&key):
            return NULL
        shape = topics.find_shape(key.start, key.end - key.start, end, &at)
        if shape != NULL:
            if not rc_is_utf8(key.start, key.end - key.start):
                return NULL
            topics.add(&key, shape)
            at -= 1
            continue
        at = read_topic(after, end, &topic)
        if at == NULL:
            return NULL
        # What comes twice under one key is there once, as its last; a name may come under several.
        if not is_text(&key, <const char*>topic.name.start, topic.name.end - topic.name.start):
            return NULL
        at = after_value(at, end, &last)
        if at == NULL or not rc_is_utf8(key.start, at - key.start):
            return NULL
        # The quote that follows belongs to the shape. Where none does, this topic is the last or the table is broken.
        shape = topics.add_shape(&topic, key.end, topic.name.start - key.end, at + 1)
        topics.add(&key, shape)
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
              out of the result. What it says holds for all topics with the same two
    returns   (topics, start, end): a dict of topic name to numbers, where the last of a name wins, and the range of
              the table in ``body``; or None if the table is unusual, missing or there twice. What is outside of it has
              only been passed over: a caller reads it, and what it refuses there makes this result void
    """
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(body)
    cdef const uint8_t* end = data + PyBytes_GET_SIZE(body)
    cdef const uint8_t* table[2]
    cdef _Topics topics = _Topics.__new__(_Topics, numbers, known, same, True)
    table[0] = table[1] = NULL
    if read_object(skip_space(data, end), end, True, topics, table) == NULL or table[0] == NULL:
        return None
    if not (rc_is_utf8(data, table[0] - data) and rc_is_utf8(table[1], end - table[1])):
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
    cdef const uint8_t* after
    cdef const uint8_t* word
    cdef const uint8_t* stop
    cdef int64_t* values[3]
    cdef Py_ssize_t taken = 0
    cdef int64_t length
    cdef int i
    cdef Topic topic
    cdef Shape* shape
    cdef _Topics topics = _Topics.__new__(_Topics, numbers, known, same, False)
    if not 0 <= position <= end - start:
        raise ValueError(f"position {position} is not within the {end - start} bytes of data")
    at = start + position
    topic.sys_flag = 0
    topic.name.escaped = False
    values[0], values[1], values[2] = &topic.read, &topic.write, &topic.perm
    while True:
        at = topics.pass_same(at, end, &taken, count)
        if taken >= count or not rc_fits(at, 4, end):
            break
        length = rc_get_i32(at)
        topic.name.start = at + 4
        if not rc_fits(topic.name.start, length, end):
            break
        topic.name.end = <const uint8_t*>memchr(topic.name.start, c" ", length)
        if topic.name.end == NULL or not is_plain(&topic.name):
            break
        shape = topics.find_shape(topic.name.start, topic.name.end - topic.name.start, end, &after)
        if not rc_is_utf8(topic.name.start, length if shape == NULL else topic.name.end - topic.name.start):
            break
        if shape == NULL:
            after = topic.name.start + length
            word = topic.name.end + 1
            for i in range(3):
                stop = <const uint8_t*>memchr(word, c" ", after - word)
                if stop == NULL or not rc_get_decimal(word, stop, INT32_MIN, INT32_MAX, values[i]):
                    break
                word = stop + 1
            else:
                shape = topics.add_shape(&topic, topic.name.end, 0, after)
        if shape == NULL:
            break
        topics.add(&topic.name, shape)
        at = after
        taken += 1
    return topics.topics, taken, at - start


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
            for _ahead in range(MOVES_AHEAD):
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
