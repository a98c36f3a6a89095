from typing import Self, final

from _typeshed import ReadableBuffer

WIDTH: int
STACK: int
NAMES: int
PUSH_NULL: int
PUSH_BOOLEAN: int
PUSH_INT: int
PUSH_LONG: int
PUSH_DOUBLE: int
PUSH_TEXT: int
PUSH_PROPERTY: int
NEGATE: int
NOT: int
CAST: int
EQUAL: int
LESS: int
LESS_EQUAL: int
GREATER: int
GREATER_EQUAL: int
AND: int
OR: int
CONTAINS: int
NOT_CONTAINS: int
STARTS_WITH: int
NOT_STARTS_WITH: int
ENDS_WITH: int
NOT_ENDS_WITH: int
IN: int
MEMBER: int
JUMP_IF_FALSE: int
JUMP_IF_TRUE: int
JUMP_IF_NULL: int

@final
class SqlFilter:
    def __new__(cls, program: ReadableBuffer, pool: bytes, names: ReadableBuffer) -> Self: ...
    def evaluate(self, properties: ReadableBuffer) -> bool | None: ...
    def matches(self, properties: ReadableBuffer) -> bool: ...
