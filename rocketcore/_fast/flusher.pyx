"""Writing and syncing files on a thread that never asks for the GIL: group commit (Java: ``GroupCommitService``).

A ``Work`` is a list of writes and syncs that belong together. ``run`` does it at once, on the calling thread; a
``Flusher`` does one after the other on a thread of its own and says so on the event loop: a semaphore wakes the thread,
an eventfd that the loop watches wakes the loop. In between nobody passes the GIL on, and no object is made for a piece.

The first work that fails is the last that reaches the disk. Linux reports a write that it could not finish once, and
marks the pages clean: a sync after that would succeed, for bytes that are lost. So what was handed over later fails
with the same error.

Who owns what. The loop's thread makes a work, hands it over, and gets it back when it is done; the queue between is a
list of C structs behind a mutex. ``Flusher._pending`` holds the objects, and with them the buffers, until then.

Where ``files`` does not say that it is ``direct``, its ``write`` and ``sync`` are called, with the GIL: that is how
tests count, fail and lose writes. All else is the same.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t

import os
import threading
from collections import deque


cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* mutex, void* attributes)
    int pthread_mutex_destroy(pthread_mutex_t* mutex)
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)

cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass
    int sem_init(sem_t* semaphore, int shared, unsigned int value)
    int sem_destroy(sem_t* semaphore)
    int sem_post(sem_t* semaphore)
    int sem_wait(sem_t* semaphore)

cdef extern from "<sys/eventfd.h>" nogil:
    int EFD_CLOEXEC, EFD_NONBLOCK
    int eventfd(unsigned int value, int flags)

cdef extern from "<unistd.h>" nogil:
    ssize_t pwrite(int fd, const void* data, size_t length, int64_t position)
    int fdatasync(int fd)
    ssize_t read_fd "read"(int fd, void* room, size_t length)
    ssize_t write_fd "write"(int fd, const void* data, size_t length)
    int close_fd "close"(int fd)


# A write, or where ``data`` is NULL a sync.
cdef struct Step:
    int fd
    const uint8_t* data
    int64_t length
    int64_t position


cdef struct Node:
    Node* next
    Step* steps
    int count
    int done             # steps that succeeded
    int error            # of the step behind them; 0: all succeeded, or Python has the exception
    bint direct
    bint last            # the thread ends with it
    bint finished
    void* work


cdef int do_step(const Step* step) noexcept nogil:
    """Return 0, or the error's number."""
    cdef int64_t written = 0
    cdef ssize_t count
    if step.data == NULL:
        while fdatasync(step.fd) != 0:
            if errno != EINTR:
                return errno
        return 0
    while written < step.length:
        count = pwrite(step.fd, step.data + written, step.length - written, step.position + written)
        if count < 0 and errno == EINTR:
            continue
        if count <= 0:
            return errno if count < 0 else EIO
        written += count
    return 0


cdef void do_steps(Node* node) noexcept nogil:
    while node.error == 0 and node.done < node.count:
        node.error = do_step(&node.steps[node.done])
        if node.error == 0:
            node.done += 1


cdef class Work:
    """Writes and syncs, in order, of which each happens only after those before it succeeded.

    files   its ``write(fd, data, position)`` and ``sync(fd)`` are called, unless it is ``direct`` or None
    """

    cdef Node _node
    cdef object _files
    cdef list _names           # a path a step
    cdef list _buffers         # (data, begin, end) a step, None for a sync; for files that are not direct
    cdef Py_buffer* _views
    cdef int _view_count
    cdef object _failure

    def __cinit__(self, files=None):
        self._node.next = NULL
        self._node.steps = NULL
        self._node.direct = files is None or files.direct
        self._node.work = <void*>self
        self._files = files
        self._names = []
        self._buffers = []
        self._views = NULL

    def __dealloc__(self):
        self._give_back()
        PyMem_Free(self._views)
        PyMem_Free(self._node.steps)

    cdef Step* _add(self, int fd, str path) except NULL:
        cdef int count = self._node.count
        cdef Step* steps = <Step*>PyMem_Realloc(self._node.steps, (count + 1) * sizeof(Step))
        if steps == NULL:
            raise MemoryError
        self._node.steps = steps
        self._names.append(path)
        steps[count].fd = fd
        steps[count].data = NULL
        steps[count].length = steps[count].position = 0
        return &steps[count]

    def write(self, int fd, str path not None, data, Py_ssize_t begin, Py_ssize_t end, int64_t position):
        """Add a write of ``data[begin:end]`` at ``position`` of a file; a short write is continued.

        data     bytes-like; not changed, and not resized, until the work is done
        raises   ValueError for a range that is not within it, or a negative position; MemoryError
        """
        cdef Py_buffer* views = <Py_buffer*>PyMem_Realloc(self._views, (self._view_count + 1) * sizeof(Py_buffer))
        cdef Py_buffer* view
        cdef Step* step
        if views == NULL:
            raise MemoryError
        self._views = views
        view = &views[self._view_count]
        PyObject_GetBuffer(data, view, PyBUF_SIMPLE)
        self._view_count += 1
        if not 0 <= begin < end <= view.len or position < 0:
            raise ValueError(f"bytes {begin}:{end} of {view.len}, at position {position}")
        step = self._add(fd, path)
        step.data = <const uint8_t*>view.buf + begin
        step.length = end - begin
        step.position = position
        if not self._node.direct:
            self._buffers.append((data, begin, end))
        self._node.count += 1

    def sync(self, int fd, str path not None):
        """Add a sync of a file's bytes (``fdatasync``)."""
        self._add(fd, path)
        if not self._node.direct:
            self._buffers.append(None)
        self._node.count += 1

    def run(self):
        """Do it now, on this thread, without the GIL; raises OSError, with the path, or what ``files`` raises."""
        if self._node.direct:
            with nogil:
                do_steps(&self._node)
        else:
            self._call()
        self._give_back()
        error = self._error()
        if error is not None:
            raise error

    cdef int _call(self) except -1:
        """Have ``files`` do it, and keep what it raises."""
        cdef Step* step
        try:
            while self._node.done < self._node.count:
                step = &self._node.steps[self._node.done]
                borrowed = self._buffers[self._node.done]
                if borrowed is None:
                    self._files.sync(step.fd)
                else:
                    data, begin, end = borrowed
                    with memoryview(data)[begin:end] as piece:
                        self._files.write(step.fd, piece, step.position)
                self._node.done += 1
        except BaseException as error:
            self._failure = error
        return 0

    cdef object _error(self):
        """What went wrong, None where nothing did."""
        if self._node.error:
            self._failure = OSError(self._node.error, os.strerror(self._node.error))
            self._node.error = 0
        if isinstance(self._failure, OSError) and not self._failure.filename and self._node.done < self._node.count:
            self._failure.filename = self._names[self._node.done]
        return self._failure

    cdef int _give_back(self) except -1:
        cdef int count = self._view_count, i
        self._view_count = 0
        for i in range(count):
            PyBuffer_Release(&self._views[i])
        self._buffers = []
        return 0


cdef class Flusher:
    """A thread for works, one after the other. All methods are for the thread of ``loop``.

    name   of the thread
    loop   the running event loop: ``done`` of each work is called there, in the order in which they were submitted
    """

    cdef object _loop
    cdef object _thread
    cdef object _pending          # (work, done) of what was submitted and not told yet, oldest first
    cdef object _failure
    cdef pthread_mutex_t _mutex   # guards the list, and ``finished``, ``done`` and ``error`` of what is in it
    cdef sem_t _wake
    cdef Node* _first
    cdef Node* _last
    cdef int _event

    def __cinit__(self, str name not None, loop):
        self._event = -1
        self._first = self._last = NULL
        pthread_mutex_init(&self._mutex, NULL)
        sem_init(&self._wake, 0, 0)
        self._event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self._event < 0:
            raise OSError(errno, os.strerror(errno))
        self._loop = loop
        self._pending = deque()
        loop.add_reader(self._event, self._told)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except BaseException:
            loop.remove_reader(self._event)
            raise

    def __dealloc__(self):
        if self._event >= 0:
            close_fd(self._event)
        sem_destroy(&self._wake)
        pthread_mutex_destroy(&self._mutex)

    def submit(self, Work work not None, done):
        """Do a work after those before it; then ``done(error)``, with None where it succeeded."""
        cdef Node* node = &work._node
        self._pending.append((work, done))
        pthread_mutex_lock(&self._mutex)
        if self._last == NULL:
            self._first = node
        else:
            self._last.next = node
        self._last = node
        pthread_mutex_unlock(&self._mutex)
        sem_post(&self._wake)

    def stop(self):
        """Do what was submitted, then end the thread; what is done by then is told before this returns."""
        cdef Work work = Work()
        if self._thread is None:
            return
        work._node.last = True
        self.submit(work, _nothing)
        self._thread.join()
        self._thread = None
        self._told()
        self._loop.remove_reader(self._event)

    def _run(self):
        """The thread: one work after the other, until the last."""
        cdef Node* node
        cdef bint last = False, failed = False
        cdef uint64_t one = 1
        with nogil:
            while not last:
                while sem_wait(&self._wake) != 0:
                    pass
                pthread_mutex_lock(&self._mutex)
                node = self._first
                self._first = node.next
                if node.next == NULL:
                    self._last = NULL
                pthread_mutex_unlock(&self._mutex)
                last = node.last
                if not failed:
                    if node.direct:
                        do_steps(node)
                    else:
                        with gil:
                            (<Work>node.work)._call()
                    failed = node.done < node.count
                pthread_mutex_lock(&self._mutex)
                node.finished = True
                pthread_mutex_unlock(&self._mutex)
                while write_fd(self._event, &one, sizeof(one)) < 0 and errno == EINTR:
                    pass

    def _told(self):
        """Tell of what is done."""
        cdef Work work
        cdef uint64_t count
        cdef bint finished
        while read_fd(self._event, &count, sizeof(count)) < 0 and errno == EINTR:
            pass
        while self._pending:
            work, done = self._pending[0]
            pthread_mutex_lock(&self._mutex)
            finished = work._node.finished
            pthread_mutex_unlock(&self._mutex)
            if not finished:
                return
            self._pending.popleft()
            work._give_back()
            if self._failure is None:
                self._failure = work._error()
            try:
                done(self._failure if work._node.done < work._node.count else None)
            except Exception as error:
                self._loop.call_exception_handler({"message": "a listener of the disk failed", "exception": error})


def _nothing(error):
    pass
