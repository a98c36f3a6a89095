"""Columns of the tables that ``header.peek`` and ``header.scan_send`` fill, for kernels that read them."""

cdef enum:
    # heads: one row a command
    CODE
    LANGUAGE
    VERSION
    OPAQUE
    FLAG
    EXT_START
    EXT_END
    STATUS
    HEAD_COLUMNS

cdef enum:
    # send rows: one row a SEND_MESSAGE_V2 request; positions in data, those of the properties in scratch
    SEND_OPAQUE
    SEND_FLAG_BITS
    SEND_QUEUE_ID
    SEND_SYS_FLAG
    SEND_BORN_TIMESTAMP
    SEND_MESSAGE_FLAG
    SEND_RECONSUME_TIMES
    SEND_BATCH
    SEND_MAX_RECONSUME
    SEND_GROUP_START
    SEND_GROUP_LENGTH
    SEND_TOPIC_START
    SEND_TOPIC_LENGTH
    SEND_PROPERTIES_START
    SEND_PROPERTIES_LENGTH
    SEND_BODY_START
    SEND_BODY_LENGTH
    SEND_DEFAULT_TOPIC_START
    SEND_DEFAULT_TOPIC_LENGTH
    SEND_DEFAULT_QUEUES
    SEND_STATUS
    SEND_CODE
    SEND_VERSION
    SEND_SERIALIZE_TYPE
    SEND_COLUMNS
