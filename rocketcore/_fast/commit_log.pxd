"""The rows that ``walk`` fills, for the kernels that read them."""

cpdef enum:
    PHYSICAL_OFFSET
    SIZE
    TAGS_CODE
    QUEUE_ID
    QUEUE_OFFSET
    STORE_TIMESTAMP
    TOPIC_START
    TOPIC_LENGTH
    SYS_FLAG
    PROPERTIES_START
    PROPERTIES_LENGTH
    DELAY_LEVEL
    PREPARED_OFFSET
    COLUMNS
