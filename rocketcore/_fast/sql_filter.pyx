"""SQL92 conditions on the properties of messages: a compiled expression, run over property text.

An expression is a program for a machine with a stack, made by ``rocketcore/filter_sql.py``. Its values are null, a
boolean, an int of 32 or of 64 bits, a double and a text; where two of different types meet, text is converted to the
type of the other, and text that does not convert is an error, by which a message does not match.

program   rows of WIDTH int64: what to do and two operands. A text is (position, length) in the pool.
property  name U+0001 value U+0002, as in record.pxd; of a name that comes twice the last pair
RocketMQ  filter/expression/*.java (5.5.0)
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from rocketcore._fast.buffers cimport (
    Borrowed,
    borrow_bytes,
    give_back,
    outside,
)
from rocketcore._fast.record cimport rc_next_property, rc_property, rc_property_reader, rc_read_properties
from rocketcore._fast.text cimport is_true, rc_java_utf8


cdef extern from "rc_number.h" nogil:
    enum:
        RC_NO_NUMBER
        RC_NUMBER
        RC_LONG_DECIMAL
        RC_HEXADECIMAL
    bint rc_parse_integer(const uint8_t* at, int64_t length, int64_t largest, int64_t* value)
    int rc_parse_double(
        const uint8_t* at, int64_t length, double* value, const uint8_t** start, const uint8_t** stop
    )
    int rc_compare_double(double left, double right)


cpdef enum:
    WIDTH = 3
    STACK = 256  # values
    NAMES = 128  # properties that one program reads

# What a row of a program does; it takes its operands from the stack and leaves its result there.
cpdef enum:
    PUSH_NULL
    PUSH_BOOLEAN  # 0 or 1
    PUSH_INT
    PUSH_LONG
    PUSH_DOUBLE  # its bits
    PUSH_TEXT  # position, length
    PUSH_PROPERTY  # index of its name
    NEGATE
    NOT
    CAST  # a property where a boolean is wanted: never true
    EQUAL
    LESS
    LESS_EQUAL
    GREATER
    GREATER_EQUAL
    AND
    OR
    CONTAINS  # position, length; of a search the odd ones are the negated
    NOT_CONTAINS
    STARTS_WITH
    NOT_STARTS_WITH
    ENDS_WITH
    NOT_ENDS_WITH
    IN  # rows of MEMBER that follow
    MEMBER  # position, length
    JUMP_IF_FALSE  # rows to go forward; the value stays
    JUMP_IF_TRUE  # rows to go forward; the value stays
    JUMP_IF_NULL  # rows to go forward; the value stays

cdef enum Type:
    NULL_VALUE
    BOOLEAN
    INT
    LONG
    DOUBLE
    TEXT


cdef struct Value:
    Type type
    int64_t number  # of a text its length
    double real
    const uint8_t* text


cdef struct Text:
    const uint8_t* at
    int64_t length


cdef int convert_slowly(int kind, const uint8_t* start, const uint8_t* stop, double* value) noexcept with gil:
    """Convert what is too long or too rare for the kernel; rounds once, as Java does."""
    try:
        text = (<const char*>start)[:stop - start].decode("ascii")
        try:
            value[0] = float(text) if kind == RC_LONG_DECIMAL else float.fromhex(text)
        except OverflowError:
            value[0] = float("-inf" if start[0] == c"-" else "inf")
    except MemoryError:
        return NO_MEMORY
    return TRUE


cdef inline int to_double(Value* value) noexcept nogil:
    """Make a double of a value that is no null and no boolean; TRUE, or why it is none."""
    cdef const uint8_t* start
    cdef const uint8_t* stop
    cdef double real = 0
    cdef int kind
    if value.type == TEXT:
        kind = rc_parse_double(value.text, value.number, &real, &start, &stop)
        if kind == RC_NO_NUMBER:
            return NOT_CONVERTIBLE
        if kind != RC_NUMBER and convert_slowly(kind, start, stop, &real) == NO_MEMORY:
            return NO_MEMORY
        value.real = real
    elif value.type != DOUBLE:
        value.real = <double>value.number
    value.type = DOUBLE
    return TRUE


cdef inline int to_integer(Value* value, Type wanted) noexcept nogil:
    if value.type == TEXT:
        if not rc_parse_integer(
            value.text, value.number, INT32_MAX if wanted == INT else INT64_MAX, &value.number
        ):
            return NOT_CONVERTIBLE
    value.type = wanted
    return TRUE


cdef bint is_same_text(
    const uint8_t* left, int64_t left_length, const uint8_t* right, int64_t right_length
) noexcept nogil:
    """Whether Java decodes both to the same text: what is malformed is U+FFFD there."""
    cdef const uint8_t* left_end = left + left_length
    cdef const uint8_t* right_end = right + right_length
    cdef uint32_t one, other
    if left_length == right_length and memcmp(left, right, left_length) == 0:
        return True
    while left < left_end and right < right_end:
        left += rc_java_utf8(left, left_end, &one)
        right += rc_java_utf8(right, right_end, &other)
        if one != other:
            return False
    return left == left_end and right == right_end


cdef int search(int64_t operation, const Value* value, const uint8_t* wanted, int64_t length) noexcept nogil:
    """Whether a text contains, begins or ends with another, or does not; FALSE where there is nothing to search."""
    cdef const uint8_t* at = value.text
    cdef const uint8_t* end
    cdef const uint8_t* here
    cdef const uint8_t* there
    cdef const uint8_t* wanted_end = wanted + length
    cdef uint32_t one, other
    cdef bint found = not (operation - CONTAINS) & 1
    if value.type != TEXT or length == 0:
        return FALSE
    end = at + value.number
    while at < end:
        here, there = at, wanted
        while here < end and there < wanted_end:
            if here[0] < 0x80 or there[0] < 0x80:
                if here[0] != there[0]:
                    break
                here += 1
                there += 1
                continue
            here += rc_java_utf8(here, end, &one)
            there += rc_java_utf8(there, wanted_end, &other)
            if one != other:
                # Neither pointer is at its end by this: the texts differ here.
                there = wanted
                break
        if there == wanted_end and (here == end or operation < ENDS_WITH):
            return found
        if operation == STARTS_WITH or operation == NOT_STARTS_WITH:
            break
        at += rc_java_utf8(at, end, &one)
    return not found


cdef int compare(Value* left, Value* right, int* order) noexcept nogil:
    """Compare two values that are not null, by the wider of their types: TRUE, and ``order`` is set."""
    cdef int outcome
    order[0] = -1
    if left.type == right.type:
        if left.type == DOUBLE:
            order[0] = rc_compare_double(left.real, right.real)
        elif left.type == TEXT:
            order[0] = not is_same_text(left.text, left.number, right.text, right.number)
        else:
            order[0] = (left.number > right.number) - (left.number < right.number)
        return TRUE
    if left.type == BOOLEAN:
        # Java casts the boolean to text there, which cannot be.
        return NOT_CONVERTIBLE if right.type == TEXT else TRUE
    if right.type == BOOLEAN:
        if left.type != TEXT:
            return TRUE
        left.number = is_true(left.text, left.number)
        order[0] = (left.number > right.number) - (left.number < right.number)
        return TRUE
    if left.type == DOUBLE or right.type == DOUBLE:
        outcome = to_double(left)
        if outcome == TRUE:
            outcome = to_double(right)
        if outcome == TRUE:
            order[0] = rc_compare_double(left.real, right.real)
        return outcome
    if left.type == TEXT:
        outcome = to_integer(left, right.type)
    elif right.type == TEXT:
        outcome = to_integer(right, left.type)
    else:
        outcome = TRUE
    order[0] = (left.number > right.number) - (left.number < right.number)
    return outcome


cdef int is_equal(Value* left, Value* right) noexcept nogil:
    """``=`` and ``IS NULL``: a null on the right alone makes it false, on the left alone unknown."""
    cdef int order, outcome
    if left.type == NULL_VALUE:
        return TRUE if right.type == NULL_VALUE else UNKNOWN
    if right.type == NULL_VALUE:
        return FALSE
    outcome = compare(left, right, &order)
    return outcome if outcome != TRUE else order == 0


cdef int is_ordered(int64_t operation, Value* left, Value* right) noexcept nogil:
    """``<``, ``<=``, ``>``, ``>=``; two texts are compared as doubles."""
    cdef int order, outcome
    if left.type == NULL_VALUE or right.type == NULL_VALUE:
        return UNKNOWN
    if left.type == TEXT and right.type == TEXT:
        outcome = to_double(left)
        if outcome == TRUE:
            outcome = to_double(right)
        if outcome != TRUE:
            return outcome
    outcome = compare(left, right, &order)
    if outcome != TRUE:
        return outcome
    if operation == LESS:
        return order < 0
    if operation == LESS_EQUAL:
        return order <= 0
    if operation == GREATER:
        return order > 0
    return order >= 0


cdef inline void put_outcome(Value* value, int outcome) noexcept nogil:
    """Leave FALSE, TRUE or UNKNOWN as a value."""
    value.type = NULL_VALUE if outcome == UNKNOWN else BOOLEAN
    value.number = outcome


cdef int is_member(
    const int64_t* row, int64_t count, const uint8_t* pool, const uint8_t* text, int64_t length
) noexcept nogil:
    cdef const int64_t* end = row + WIDTH * count
    while row < end:
        if is_same_text(text, length, pool + row[1], row[2]):
            return TRUE
        row += WIDTH
    return FALSE


cdef int run(const int64_t* row, const int64_t* end, const uint8_t* pool, const Text* properties) noexcept nogil:
    """Run a program that was checked; returns an Outcome."""
    cdef Value stack[STACK + 1]  # the first is below them all
    cdef Value* top = stack
    cdef int64_t operation
    cdef int outcome
    while row < end:
        operation = row[0]
        if operation == PUSH_PROPERTY:
            top += 1
            top.text = properties[row[1]].at
            top.number = properties[row[1]].length
            top.type = NULL_VALUE if top.text == NULL else TEXT
        elif operation <= PUSH_TEXT:
            top += 1
            top.type = NULL_VALUE
            top.number = row[1]
            if operation == PUSH_BOOLEAN:
                top.type = BOOLEAN
            elif operation == PUSH_INT:
                top.type = INT
            elif operation == PUSH_LONG:
                top.type = LONG
            elif operation == PUSH_DOUBLE:
                top.type = DOUBLE
                memcpy(&top.real, &row[1], 8)
            elif operation == PUSH_TEXT:
                top.type = TEXT
                top.text = pool + row[1]
                top.number = row[2]
        elif operation == EQUAL:
            top -= 1
            outcome = is_equal(top, top + 1)
            if outcome > UNKNOWN:
                return outcome
            put_outcome(top, outcome)
        elif operation <= GREATER_EQUAL and operation >= LESS:
            top -= 1
            outcome = is_ordered(operation, top, top + 1)
            if outcome > UNKNOWN:
                return outcome
            put_outcome(top, outcome)
        elif operation == JUMP_IF_FALSE:
            if top.type == BOOLEAN and not top.number:
                row += WIDTH * row[1]
        elif operation == JUMP_IF_TRUE:
            if top.type == BOOLEAN and top.number:
                row += WIDTH * row[1]
        elif operation == JUMP_IF_NULL:
            if top.type == NULL_VALUE:
                row += WIDTH * row[1]
        elif operation == AND:
            # The left operand was not false, or else the right one had been jumped over. OR: it was not true.
            top -= 1
            if top.type == NULL_VALUE and (top[1].type == NULL_VALUE or top[1].number):
                pass
            else:
                top[0] = top[1]
        elif operation == OR:
            top -= 1
            if top.type == NULL_VALUE and (top[1].type == NULL_VALUE or not top[1].number):
                pass
            else:
                top[0] = top[1]
        elif operation == NOT:
            if top.type == BOOLEAN:
                top.number = not top.number
        elif operation == CAST:
            if top.type != NULL_VALUE:
                top.type = BOOLEAN
                top.number = 0
        elif operation == NEGATE:
            if top.type == INT or top.type == LONG:
                top.number = <int64_t>(0 - <uint64_t>top.number)
            elif top.type == DOUBLE:
                top.real = -top.real
            else:
                top.type = NULL_VALUE
        elif operation == IN:
            if top.type == TEXT:
                outcome = is_member(row + WIDTH, row[1], pool, top.text, top.number)
                put_outcome(top, outcome)
            row += WIDTH * row[1]
        else:
            put_outcome(top, search(operation, top, pool + row[1], row[2]))
        row += WIDTH
    return UNKNOWN if top.type != BOOLEAN else TRUE if top.number else FALSE


cdef class SqlFilter:
    """An expression that is ready to run; it is never changed, and any thread may use it.

    program  int64[WIDTH * n], n rows as above
    pool     bytes that the texts lie in, UTF-8
    names    int64[2 * k]: position and length, in the pool, of the name of each property that the program reads
    raises   ValueError for a program that could leave its stack, its pool or its rows
    """

    def __cinit__(self, program, bytes pool not None, names):
        self.kept_program = bytes(memoryview(program).cast("B"))
        self.kept_pool = pool
        self.kept_names = bytes(memoryview(names).cast("B"))
        self.program = <const int64_t*>PyBytes_AS_STRING(self.kept_program)
        self.program_end = self.program + PyBytes_GET_SIZE(self.kept_program) // 8
        self.pool = <const uint8_t*>PyBytes_AS_STRING(self.kept_pool)
        self.names = <const int64_t*>PyBytes_AS_STRING(self.kept_names)
        self.count = PyBytes_GET_SIZE(self.kept_names) // 16
        if self.count > NAMES:
            raise ValueError(f"{self.count} properties; {NAMES} are the most")
        for i in range(self.count):
            check_text(self.names[2 * i], self.names[2 * i + 1], len(pool))
        check_program(memoryview(self.kept_program).cast("q"), len(pool), self.count)

    def evaluate(self, properties):
        """Return the value of the expression for a property string: True, False, or None for null.

        raises  ValueError where a text does not convert to what it is compared with
        """
        cdef int outcome = self.outcome_of(properties)
        if outcome == NOT_CONVERTIBLE:
            raise ValueError("a value does not convert to the type that it is compared with")
        return None if outcome == UNKNOWN else outcome == TRUE

    def matches(self, properties):
        """Whether a message with this property string matches: the expression is true, and there is no error."""
        return self.outcome_of(properties) == TRUE

    cdef int outcome_of(self, object properties) except -1:
        cdef Borrowed held
        cdef int outcome
        held.count = 0
        try:
            source = borrow_bytes(&held, properties)
            outcome = self.match(<const uint8_t*>source.buf, source.len)
        finally:
            give_back(&held)
        if outcome == NO_MEMORY:
            raise MemoryError
        return outcome

    cdef int match(self, const uint8_t* at, int64_t length) noexcept nogil:
        """Return the Outcome for one property string."""
        cdef Text values[NAMES]
        cdef rc_property_reader reader
        cdef rc_property found
        cdef int64_t i
        for i in range(self.count):
            values[i].at = NULL
            values[i].length = 0
        if self.count:
            reader = rc_read_properties(at, length)
            while rc_next_property(&reader, &found):
                for i in range(self.count):
                    if found.name_length == self.names[2 * i + 1] and memcmp(
                        found.name, self.pool + self.names[2 * i], found.name_length
                    ) == 0:
                        values[i].at = found.value
                        values[i].length = found.value_length
                        break
        return run(self.program, self.program_end, self.pool, values)


cdef int check_program(program, Py_ssize_t pool_size, Py_ssize_t names) except -1:
    """Check every operand, and that the stack never runs dry or over whichever way a program goes."""
    cdef Py_ssize_t i = 0, depth = 0, rows = len(program) // WIDTH
    cdef dict depths = {}
    if len(program) % WIDTH:
        raise ValueError(f"{len(program)} numbers are no rows of {WIDTH}")
    while i < rows:
        operation, first, second = program[WIDTH * i], program[WIDTH * i + 1], program[WIDTH * i + 2]
        needed = 2 if EQUAL <= operation <= OR else 0 if operation <= PUSH_PROPERTY else 1
        if not PUSH_NULL <= operation <= JUMP_IF_NULL or operation == MEMBER or depth < needed:
            raise ValueError(f"row {i} cannot do {operation} with {depth} values")
        if depths.pop(i, depth) != depth:
            raise ValueError(f"row {i} is reached with stacks that differ")
        depth += 1 - needed
        if depth > STACK:
            raise ValueError(f"more than {STACK} values")
        if operation == PUSH_TEXT or CONTAINS <= operation <= NOT_ENDS_WITH:
            check_text(first, second, pool_size)
        elif operation == PUSH_PROPERTY:
            if not 0 <= first < names:
                raise ValueError(f"row {i} reads property {first} of {names}")
        elif operation == IN:
            if not 0 <= first <= rows - i - 1:
                raise ValueError(f"row {i} has {first} members")
            for member in range(i + 1, i + 1 + first):
                if program[WIDTH * member] != MEMBER or member in depths:
                    raise ValueError(f"row {member} is no member")
                check_text(program[WIDTH * member + 1], program[WIDTH * member + 2], pool_size)
            i += first
        elif JUMP_IF_FALSE <= operation <= JUMP_IF_NULL:
            if not 0 <= first < rows - i or depths.setdefault(i + 1 + first, depth) != depth:
                raise ValueError(f"row {i} cannot go {first} rows forward")
        i += 1
    if depth != 1 or depths.pop(rows, depth) != depth or depths:
        raise ValueError(f"{depth} values at the end, jumps to {sorted(depths)}")
    return 0


cdef int check_text(int64_t position, int64_t length, int64_t pool_size) except -1:
    if outside(position, length, pool_size):
        raise ValueError(f"text of {length} bytes at {position} is not in the pool of {pool_size} bytes")
    return 0
