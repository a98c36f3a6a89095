"""What was decided of pulls that ask alike, and what each of them is noted in: both are on the path of every pull.

RocketMQ  broker/processor/PullMessageProcessor.java, 5.5.0
"""

from libc.stdint cimport int64_t


cdef class Decided:
    """Of one group and queue; loop thread only.

    The tables of ``offsets`` and ``stats`` are the caller's. Their entries are kept at hand, as to find them costs more
    than to change them, until they say that these are not theirs any more: pull offsets that were removed are empty,
    counters that were settled are not noted.

    header         the pull that it was decided of
    wanted         what it selects; the caller's
    offsets        ``place``, ``resets``, ``commit`` and ``note_pull`` of ``ConsumerOffsets``
    stats          ``gets`` of ``BrokerStats``
    commits        whether such pulls bring an offset to commit
    subscriptions  of the group as it is connected, by topic: that of this topic is what it was decided with. None: such
                   pulls bring their own
    """

    def __init__(self, header, wanted, offsets, stats, bint commits, dict subscriptions):
        self._place = offsets.place(header.consumer_group, header.topic)
        self._resets = offsets.resets
        self.header = header
        self.wanted = wanted
        self._group = header.consumer_group
        self._topic = header.topic
        self._queue_id = header.queue_id
        self._commit = offsets.commit if commits else None
        self._note_pull = offsets.note_pull
        self._gets = stats.gets
        self._subscriptions = subscriptions
        self._subscription = None if subscriptions is None else subscriptions.get(header.topic)
        self._pulled = {}
        self._tally = None
        self._counts = []

    cpdef bint holds(self) except -1:
        """Return whether the subscription that such pulls go by is the one that it was decided with, and no offset of
        the group in the topic was reset: that is told to its next pull."""
        if self._resets and self._place in self._resets:
            return False
        return self._subscriptions is None or self._subscriptions.get(self._topic) is self._subscription

    cpdef note(self, int64_t commit_offset, int64_t next_offset, Py_ssize_t messages, Py_ssize_t size):
        """Note one answer with messages, of ``size`` bytes together; ``commit_offset`` came with the pull."""
        cdef list counts
        if self._commit is not None:
            self._commit(self._group, self._topic, self._queue_id, commit_offset)
        if self._queue_id in self._pulled:
            self._pulled[self._queue_id] = next_offset
        else:
            self._pulled = self._note_pull(self._group, self._topic, self._queue_id, next_offset)
        if self._tally is None or not self._tally.is_noted:
            self._tally = self._gets(self._group, self._topic)
            self._counts = self._tally[self._queue_id]
        counts = self._counts
        counts[0] += messages
        counts[1] += size
        counts[2] += 1
