from collections.abc import Mapping

from _typeshed import ReadableBuffer

def read(
    data: ReadableBuffer, header_start: int, header_length: int, serialize_type: int
) -> tuple[int, int, int, int, int, str | None, dict[str, str] | None] | None: ...
def encode_frame(
    code: int,
    language: int,
    version: int,
    opaque: int,
    flag: int,
    remark: str | None,
    ext_fields: Mapping[str, str | None] | None,
    body: ReadableBuffer,
    serialize_type: int,
) -> bytes: ...
def encode_send_response(
    opaque: int,
    version: int,
    queue_id: int,
    queue_offset: int,
    msg_id: bytes,
    transaction_id: bytes | None,
    serialize_type: int,
    region: bytes,
) -> bytes: ...
def encode_pull_response_header(
    code: int,
    opaque: int,
    version: int,
    remark: str | None,
    suggest: int,
    next_begin: int,
    min_offset: int,
    max_offset: int,
    body_length: int,
    serialize_type: int,
) -> bytes: ...
