"""The topics of a broker's registration: from its body into a dict of names to numbers, and from that into the table.

A kernel, because a broker sends all its topics after each change of one: 10,000 are 1.7 MB of JSON. Numbers are parsed
once for each form that topics have, and equal ones are one object, and a topic that is where the table has it costs two
comparisons; any other a name and two look-ups.

json      {"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"topicName":"T","readQueueNums":8,"writeQueueNums":8,
          "perm":6,"topicSysFlag":0,…},…},…},…}: keys in any order, standard JSON; a topic with a key that Java does not
          write, without its name or one of the first three numbers, with an escape in its name or more than 32,767
          bytes of it, or under another key than its name is *unusual*, and so is a body with an escape in a key outside
          of the table
text      length i32, then "name read write perm filterType" and perhaps attributes, separated by one blank each
known     the table that the topics are for: those that are as it has them are left out, and no name of theirs is kept
form      all bytes of a topic but its name; those of one form have the same numbers, and a broker writes few forms
RocketMQ  remoting/protocol/body/RegisterBrokerBody.java 5.5.0
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem, PyDict_Next, PyDict_SetItem
from cpython.ref cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t, uint8_t
from libc.string cimport memchr, memcmp, memcpy

from rocketcore._fast.command cimport Text, is_text, rc_is_utf8, read_int, read_string, read_word, skip_ext, skip_space


cdef extern from "rc_bytes.h" nogil:
    bint rc_fits(const uint8_t* at, int64_t length, const uint8_t* end)
    int32_t rc_get_i32(const uint8_t* at)
    bint rc_get_decimal(const uint8_t* at, const uint8_t* end, int64_t low, int64_t high, int64_t* value)

cdef extern from "Python.h":
    str PyUnicode_New(Py_ssize_t size, Py_UCS4 highest)
    void* PyUnicode_DATA(object text)
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)

cdef enum:
    NAME_MAX = 0x7FFF
    FORMS = 8  # the first ones are kept
    STEPS = 4  # names of the table that are passed over to find one in its order
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


cdef struct Form:
    const uint8_t* middle     # json: from behind the name as a key to the name in the object; text: nothing
    const uint8_t* rest       # from behind the name to the end of the object or text
    Py_ssize_t middle_length
    Py_ssize_t rest_length
    PyObject* numbers         # borrowed from ``shared``


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


cdef inline bint is_plain(const Text* name) noexcept nogil:
    return not name.escaped and 0 < name.end - name.start <= NAME_MAX


cdef inline bint is_printable_ascii(const Text* name) noexcept nogil:
    """No early exit: the loop is for the vector unit."""
    cdef uint8_t other = 0
    cdef Py_ssize_t i
    for i in range(name.end - name.start):
        other |= <uint8_t>(name.start[i] - 0x20) >= 0x5F
    return other == 0


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
            at = read_word(at, end, "true" if at < end and at[0] == c"t" else "false")
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


cdef bint read_numbers(const uint8_t* at, const uint8_t* end, Topic* topic) noexcept nogil:
    """Read the three numbers of a text, each with a blank after it; False if one of them is none."""
    cdef int64_t* values[3]
    cdef const uint8_t* stop
    cdef int i
    topic.sys_flag = 0
    values[0], values[1], values[2] = &topic.read, &topic.write, &topic.perm
    for i in range(3):
        stop = <const uint8_t*>memchr(at, c" ", end - at)
        if stop == NULL or not rc_get_decimal(at, stop, INT32_MIN, INT32_MAX, values[i]):
            return False
        at = stop + 1
    return True


@cython.final
cdef class _Topics:
    """The topics of one body, and the forms they have."""

    cdef dict topics
    cdef dict known        # topic → what the table has, None: nothing is left out
    cdef Py_ssize_t place  # where ``PyDict_Next`` goes on in it
    cdef object same
    cdef dict answers      # of ``same``, by what it was asked
    cdef PyObject* old     # what was asked last, and its answer
    cdef PyObject* value
    cdef bint is_same
    cdef list to_check     # names that hold more than printable ASCII
    cdef dict shared       # read, write, perm and system flag → numbers
    cdef object numbers
    cdef Form forms[FORMS]
    cdef int form_count

    def __cinit__(self, numbers, known, same):
        self.topics = {}
        self.known = known
        self.place = 0
        self.same = same
        self.answers = {}
        self.old = self.value = NULL
        self.to_check = []
        self.shared = {}
        self.numbers = numbers
        self.form_count = 0

    cdef PyObject* find_json(self, const Text* name, const uint8_t* end, const uint8_t** after) noexcept:
        """Return the numbers of a topic of a known form, and the byte after it; NULL for another."""
        cdef Py_ssize_t length = name.end - name.start
        cdef const uint8_t* at
        cdef const Form* form
        cdef int i
        for i in range(self.form_count):
            form = &self.forms[i]
            if end - name.end < form.middle_length + length + form.rest_length:
                continue
            at = name.end + form.middle_length
            if (
                memcmp(name.end, form.middle, form.middle_length) == 0
                and memcmp(at, name.start, length) == 0
                and memcmp(at + length, form.rest, form.rest_length) == 0
            ):
                after[0] = at + length + form.rest_length
                return form.numbers
        return NULL

    cdef PyObject* find_text(self, const uint8_t* rest, Py_ssize_t length) noexcept:
        """Return the numbers of a topic of a known form; NULL for another."""
        cdef int i
        for i in range(self.form_count):
            if self.forms[i].rest_length == length and memcmp(self.forms[i].rest, rest, length) == 0:
                return self.forms[i].numbers
        return NULL

    cdef PyObject* add_form(
        self, const Topic* topic, const uint8_t* middle, Py_ssize_t middle_length, const uint8_t* end
    ) except NULL:
        """Return the numbers of a topic that ends before ``end``, and keep its form."""
        cdef Form* form
        cdef tuple key = (topic.read, topic.write, topic.perm, topic.sys_flag)
        numbers = self.shared.get(key)
        if numbers is None:
            numbers = self.shared[key] = self.numbers(*key)
        if self.form_count < FORMS:
            form = &self.forms[self.form_count]
            form.middle, form.middle_length = middle, middle_length
            form.rest, form.rest_length = topic.name.end, end - topic.name.end
            form.numbers = <PyObject*>numbers
            self.form_count += 1
        return <PyObject*>numbers

    cdef PyObject* next_known(self, const Text* name, PyObject** topic) noexcept:
        """Find a topic among the next ones in the table's order: what the table has for it, and its name there.

        A broker's topics came into the table in the order in which it still sends them, and to compare a name with one
        that lies there is a tenth of the work of making and hashing a string. NULL: it is to be looked up.
        """
        cdef Py_ssize_t length = name.end - name.start
        cdef Py_ssize_t place = self.place
        cdef PyObject* old
        cdef int _
        for _ in range(STEPS):
            if not PyDict_Next(self.known, &place, topic, &old):
                return NULL
            if (
                PyUnicode_IS_COMPACT_ASCII(<object>topic[0])
                and PyUnicode_GET_LENGTH(<object>topic[0]) == length
                and memcmp(PyUnicode_DATA(<object>topic[0]), name.start, length) == 0
            ):
                self.place = place
                return old
        return NULL

    cdef bint is_same_as(self, PyObject* old, PyObject* numbers) except -1:
        """Whether what the table has for a topic is these numbers."""
        if old != self.old or numbers != self.value:
            key = (<object>old, <object>numbers)
            answer = self.answers.get(key)
            if answer is None:
                answer = self.answers[key] = bool(self.same(*key))
            self.old, self.value, self.is_same = old, numbers, answer
        return self.is_same

    cdef int add(self, const Text* name, PyObject* numbers) except -1:
        cdef Py_ssize_t length = name.end - name.start
        cdef bint plain = is_printable_ascii(name)
        cdef PyObject* old = NULL
        cdef PyObject* found
        cdef str text
        if self.known is not None:
            old = self.next_known(name, &found)
        if old != NULL:
            text = <str>found
        elif plain:
            text = PyUnicode_New(length, 0x7F)
            memcpy(PyUnicode_DATA(text), name.start, length)
        else:
            text = PyUnicode_DecodeUTF8(<const char*>name.start, length, NULL)
        if old == NULL and self.known is not None:
            old = PyDict_GetItem(self.known, text)
        if old != NULL and self.is_same_as(old, numbers):
            if self.topics:
                self.topics.pop(text, None)  # the last of a name wins
            return 0
        if not plain:
            self.to_check.append(text)
        PyDict_SetItem(self.topics, text, <object>numbers)
        return 0


cdef const uint8_t* read_table(const uint8_t* at, const uint8_t* end, _Topics topics) except? NULL:
    """Read the table, ``at`` is after its brace; returns the byte after it, NULL if it is unusual."""
    cdef Text key
    cdef Topic topic
    cdef PyObject* numbers
    cdef const uint8_t* value
    cdef bint last = False
    at = skip_space(at, end)
    if at < end and at[0] == c"}":
        return at + 1
    while not last:
        value = after_key(at, end, &key)
        if value == NULL or not is_plain(&key):
            return NULL
        numbers = topics.find_json(&key, end, &at)
        if numbers == NULL:
            at = read_topic(value, end, &topic)
            # What comes twice under one key is there once, as its last; a name may come under several.
            if at == NULL or not is_text(&key, <const char*>topic.name.start, topic.name.end - topic.name.start):
                return NULL
            numbers = topics.add_form(&topic, key.end, topic.name.start - key.end, at)
        topics.add(&key, numbers)
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
    known     topics for which ``same(known[topic], numbers)`` holds are left out; asked once for each distinct two
    returns   (topics, to_check, start, end): a dict of topic name to numbers, where the last of a name wins; a list of
              the names that hold more than printable ASCII; and the range of the table in ``body``. None if the table
              is unusual, missing or there twice, or the body not UTF-8. What is outside of the table has only been
              passed over: a caller reads it, and what it refuses there makes this result void
    """
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(body)
    cdef const uint8_t* end = data + PyBytes_GET_SIZE(body)
    cdef const uint8_t* table[2]
    cdef _Topics topics = _Topics.__new__(_Topics, numbers, known, same)
    table[0] = table[1] = NULL
    if not rc_is_utf8(data, end - data):
        return None
    if read_object(skip_space(data, end), end, True, topics, table) == NULL or table[0] == NULL:
        return None
    return topics.topics, topics.to_check, table[0] - data, table[1] - data


def read_topic_texts(
    bytes data not None, Py_ssize_t position, Py_ssize_t count, numbers, dict known=None, same=None
):
    """Read topics of the compressed form, already inflated.

    position  where the first text's length word is
    count     how many there are, at most
    numbers   as for ``read_topic_table``, as known and same; the system flag is 0, it does not travel
    returns   (topics, to_check, read, position): the first two as ``read_topic_table`` has them, how many texts it
              took, and the first byte after them. It stops before a text that is not plain: cut, not UTF-8, of fewer
              than five words, without name or with one of more than 32,767 bytes, or with a number that is no int32
    raises    ValueError for a position outside of the data
    """
    cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const uint8_t* end = start + PyBytes_GET_SIZE(data)
    cdef const uint8_t* at
    cdef const uint8_t* after
    cdef Py_ssize_t taken = 0
    cdef Topic topic
    cdef PyObject* found
    cdef _Topics topics = _Topics.__new__(_Topics, numbers, known, same)
    if not 0 <= position <= end - start:
        raise ValueError(f"position {position} is not within the {end - start} bytes of data")
    at = start + position
    topic.name.escaped = False
    while taken < count and rc_fits(at, 4, end) and rc_fits(at + 4, rc_get_i32(at), end):
        topic.name.start = at + 4
        after = at + 4 + rc_get_i32(at)
        topic.name.end = <const uint8_t*>memchr(topic.name.start, c" ", after - topic.name.start)
        if topic.name.end == NULL or not is_plain(&topic.name) or not rc_is_utf8(at + 4, after - at - 4):
            break
        found = topics.find_text(topic.name.end, after - topic.name.end)
        if found == NULL:
            if not read_numbers(topic.name.end + 1, after, &topic):
                break
            found = topics.add_form(&topic, NULL, 0, after)
        topics.add(&topic.name, found)
        at = after
        taken += 1
    return topics.topics, topics.to_check, taken, at - start


def move(dict table not None, dict topics not None, target):
    """Give each topic in ``table`` what follows from what it has there and in ``topics``; return the names that moved.

    target  called as ``target(old, value)``, None as old for a topic that is not there, once for each distinct old and
            value; where it returns old itself the topic stays. It may not change the dicts. What it raises comes
            through, and no topic has moved
    """
    cdef dict targets = {}  # old → value → new
    cdef list names = [], values = []
    cdef dict of_old
    cdef PyObject* name
    cdef PyObject* value
    cdef PyObject* old
    cdef PyObject* found
    cdef PyObject* latest_old = NULL
    cdef PyObject* latest_value = NULL
    cdef Py_ssize_t place = 0, i
    cdef bint moves = False
    cdef object known, new = None
    while PyDict_Next(topics, &place, &name, &value):
        old = PyDict_GetItem(table, <object>name)
        if old != latest_old or value != latest_value:
            known = None if old == NULL else <object>old
            found = PyDict_GetItem(targets, known)
            if found == NULL:
                of_old = targets[known] = {}
            else:
                of_old = <dict>found
            found = PyDict_GetItem(of_old, <object>value)
            if found == NULL:
                new = of_old[<object>value] = target(known, <object>value)
            else:
                new = <object>found
            moves = new is not known
            latest_old, latest_value = old, value
        if moves:
            names.append(<object>name)
            values.append(new)
    for i in range(len(names)):
        table[names[i]] = values[i]
    return names
