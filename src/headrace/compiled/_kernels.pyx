# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Loops over the bytes of Arrow string columns.

All take columns of ``string`` or ``binary`` (32-bit offsets) without nulls.  An answer is yes, or
"not sure": what is no plain case (text that is not ASCII, a subject to be refused, corrupt offsets)
is left to the caller's fallback in Python, which knows the rules and how to explain them.  Every
access is bounds-checked beforehand: nothing is read outside a buffer, whatever the offsets say.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

cdef enum:
    SPACE = 0x20
    STAR = 0x2A
    DOT = 0x2E
    GREATER = 0x3E
    DELETE = 0x7F
    COLUMNS_MAX = 3
    LIMITS_COMPARED_MAX = 16
    # From this many rows on the GIL is released; for fewer, taking it again costs more.
    MANY_ROWS = 65536


cdef struct Texts:
    const int32_t* at
    const uint8_t* data


cdef class _Column:
    """The buffers of a column, held (buffer protocol) for as long as this object lives."""

    cdef Py_buffer _offsets
    cdef Py_buffer _bytes
    cdef const int32_t* at
    cdef const uint8_t* data
    cdef Py_ssize_t rows
    cdef bint sound

    def __cinit__(self, column):
        cdef Py_ssize_t first = column.offset, row
        self.rows = len(column)
        _, offsets, data = column.buffers()
        if offsets is None:
            return
        PyObject_GetBuffer(offsets, &self._offsets, PyBUF_SIMPLE)
        if data is not None:
            PyObject_GetBuffer(data, &self._bytes, PyBUF_SIMPLE)
        if self._offsets.len < <Py_ssize_t> sizeof(int32_t) * (first + self.rows + 1):
            return
        self.at = <const int32_t*> self._offsets.buf + first
        self.data = <const uint8_t*> self._bytes.buf
        cdef bint falls = self.at[0] < 0
        for row in range(self.rows):
            # No early exit, so that the compiler vectorises the loop (SIMD).
            falls |= self.at[row + 1] < self.at[row]
        self.sound = not falls and self.at[self.rows] <= self._bytes.len

    def __dealloc__(self):
        PyBuffer_Release(&self._offsets)
        PyBuffer_Release(&self._bytes)


# --- texts ---------------------------------------------------------------------------------


def plain_events(list columns, int32_t subject_max, int32_t key_max, int32_t value_max):
    """Whether no event can break a rule; ``columns`` are subjects, keys if there are any, values.

    That is so if all subjects and keys are plain ASCII, there is no null, and nothing is longer
    than its limit.
    """
    cdef Py_ssize_t last = len(columns) - 1, k
    cdef _Column column
    for k in range(last + 1):
        if columns[k].null_count:
            return False
        column = _Column(columns[k])
        if not column.sound:
            return False
        if k == 0:
            plain = _are_plain_subjects(column, subject_max)
        elif k < last:
            plain = _longest(column) <= key_max and _is_ascii(column)
        else:
            plain = _longest(column) <= value_max
        if not plain:
            return False
    return last > 0


def plain_subjects(column, int32_t bytes_max):
    """Whether all subjects are well-formed ASCII of at most ``bytes_max``, without wildcards."""
    cdef _Column subjects = _Column(column)
    return subjects.sound and _are_plain_subjects(subjects, bytes_max)


cdef bint _are_plain_subjects(_Column subjects, int32_t bytes_max):
    if subjects.rows <= MANY_ROWS:
        return _look_at_subjects(subjects, bytes_max)
    with nogil:
        return _look_at_subjects(subjects, bytes_max)


cdef bint _look_at_subjects(_Column subjects, int32_t bytes_max) noexcept nogil:
    cdef const uint8_t* data = subjects.data
    cdef Py_ssize_t row
    cdef int32_t i, low, high
    cdef uint8_t byte, bad = 0
    for row in range(subjects.rows):
        low, high = subjects.at[row], subjects.at[row + 1]
        if low == high or high - low > bytes_max or data[low] == DOT or data[high - 1] == DOT:
            return False
    # All bytes in one pass.  Two adjacent dots are within one subject: no edge of one is a dot.
    low, high = subjects.at[0], subjects.at[subjects.rows]
    for i in range(low, high):
        byte = data[i]
        bad |= (byte <= SPACE) | (byte >= DELETE) | (byte == STAR) | (byte == GREATER)
    for i in range(low, high - 1):
        bad |= (data[i] == DOT) & (data[i + 1] == DOT)
    return bad == 0


cdef int32_t _longest(_Column column) noexcept:
    cdef Py_ssize_t row
    cdef int32_t longest = 0
    for row in range(column.rows):
        longest = max(longest, column.at[row + 1] - column.at[row])
    return longest


cdef bint _is_ascii(_Column column) noexcept:
    cdef int32_t i
    cdef uint8_t seen = 0
    for i in range(column.at[0], column.at[column.rows]):
        seen |= column.data[i]
    return seen < 0x80


def begin_with(column, bytes prefix):
    """Whether every row begins with a prefix."""
    cdef _Column held = _Column(column)
    cdef Texts texts = Texts(held.at, held.data)
    return held.sound and _all_begin(held.rows, texts, prefix)


cdef bint _all_begin(Py_ssize_t rows, Texts texts, bytes prefix) noexcept:
    cdef const char* wanted = PyBytes_AS_STRING(prefix)
    cdef Py_ssize_t size = len(prefix), row
    for row in range(rows):
        if texts.at[row + 1] - texts.at[row] < size:
            return False
        if memcmp(texts.data + texts.at[row], wanted, size) != 0:
            return False
    return True


# --- hashes --------------------------------------------------------------------------------


cdef inline uint32_t _fnv1a(const uint8_t* data, int32_t low, int32_t high) noexcept nogil:
    cdef uint32_t state = 0x811C9DC5
    cdef int32_t i
    for i in range(low, high):
        state = (state ^ data[i]) * <uint32_t> 0x01000193
    return state


cdef inline uint32_t _mix(uint32_t state) noexcept nogil:
    state ^= state >> 16
    state *= <uint32_t> 0x85EBCA6B
    state ^= state >> 13
    state *= <uint32_t> 0xC2B2AE35
    return state ^ (state >> 16)


def hash_into(column, out, bint mixed):
    """FNV-1a of every row, with the finaliser if ``mixed``, into ``out`` (uint32).

    False means that nothing was done.
    """
    cdef _Column texts = _Column(column)
    cdef Py_buffer numbers
    if not texts.sound:
        return False
    PyObject_GetBuffer(out, &numbers, PyBUF_WRITABLE)
    try:
        if numbers.len < <Py_ssize_t> sizeof(uint32_t) * texts.rows:
            raise ValueError("no room for all hashes")
        if texts.rows <= MANY_ROWS:
            _hash_rows(texts, <uint32_t*> numbers.buf, mixed)
        else:
            with nogil:
                _hash_rows(texts, <uint32_t*> numbers.buf, mixed)
    finally:
        PyBuffer_Release(&numbers)
    return True


cdef void _hash_rows(_Column texts, uint32_t* found, bint mixed) noexcept nogil:
    cdef uint32_t state
    cdef Py_ssize_t row
    for row in range(texts.rows):
        state = _fnv1a(texts.data, texts.at[row], texts.at[row + 1])
        found[row] = _mix(state) if mixed else state


# --- messages ------------------------------------------------------------------------------


cdef struct Share:
    # What one segment gets; ``_fill`` then counts in it how far its message is written.
    int64_t rows
    int64_t latest
    int64_t* numbers
    int64_t* stamps
    int64_t size[COLUMNS_MAX]
    int32_t* bounds[COLUMNS_MAX]
    uint8_t* bytes[COLUMNS_MAX]


def split(
    list columns, bytes prefix, Py_ssize_t hashed, bytes limits, uint32_t partitions, form
):
    """Partition a batch: (segment, rows, greatest time, IPC message, row numbers) of each segment.

    ``columns`` are those of the batch: times, subjects, which all have to begin with ``prefix``,
    and other strings.  The hash of the column at ``hashed`` chooses the segment: by the ``limits``
    between the segments' key ranges (uint32), or modulo ``partitions`` if that is not 0.
    ``form`` is the template of ``headrace.log.message``.  None means that it does not apply.
    """
    cdef list held = [_Column(given) for given in columns[1:]]
    cdef Texts texts[COLUMNS_MAX]
    cdef Py_ssize_t count = len(held), rows, first, segments, k
    cdef _Column column
    cdef Py_buffer times
    cdef Share* shares
    cdef uint32_t* places
    if not 0 < count <= COLUMNS_MAX or not 0 < hashed <= count:
        raise ValueError(f"{count} columns of texts, of which the one at {hashed} decides")
    rows, first = len(columns[0]), columns[0].offset
    for k in range(count):
        column = held[k]
        if not column.sound or column.rows != rows:
            return None
        texts[k].at = column.at
        texts[k].data = column.data
    if not _all_begin(rows, texts[0], prefix):
        return None
    segments = partitions if partitions else len(limits) // <Py_ssize_t> sizeof(uint32_t) + 1
    PyObject_GetBuffer(columns[0].buffers()[1], &times, PyBUF_SIMPLE)
    shares = <Share*> calloc(segments, sizeof(Share))
    places = <uint32_t*> malloc((rows + 1) * sizeof(uint32_t))
    try:
        if shares == NULL or places == NULL:
            raise MemoryError
        if times.len < <Py_ssize_t> sizeof(int64_t) * (first + rows):
            return None
        _route(rows, texts[hashed - 1], limits, partitions, places)
        _measure(rows, count, texts, places, shares)
        found = _frame(count, segments, shares, form)
        _fill(rows, count, texts, <const int64_t*> times.buf + first, places, shares)
        return [(s, n, shares[<Py_ssize_t> s].latest, blob, own) for s, n, blob, own in found]
    finally:
        PyBuffer_Release(&times)
        free(places)
        free(shares)


cdef void _route(
    Py_ssize_t rows, Texts keys, bytes limits, uint32_t partitions, uint32_t* places
) noexcept:
    """The segment of every row: a linear scan of few limits, a binary search of many."""
    cdef const uint32_t* limit = <const uint32_t*> PyBytes_AS_STRING(limits)
    cdef Py_ssize_t count = len(limits) // <Py_ssize_t> sizeof(uint32_t), row, k
    cdef uint32_t found, place, low, high
    for row in range(rows):
        found = _fnv1a(keys.data, keys.at[row], keys.at[row + 1])
        if partitions:
            places[row] = found % partitions
            continue
        found = _mix(found)
        place = 0
        if count <= LIMITS_COMPARED_MAX:
            for k in range(count):
                place += found >= limit[k]
        else:
            high = <uint32_t> count
            while place < high:
                low = (place + high) // 2
                if found >= limit[low]:
                    place = low + 1
                else:
                    high = low
        places[row] = place


cdef void _measure(
    Py_ssize_t rows, Py_ssize_t count, Texts* texts, uint32_t* places, Share* shares
) noexcept:
    """Rows and bytes per column of every segment."""
    cdef Py_ssize_t row, k
    cdef Share* share
    for row in range(rows):
        share = shares + places[row]
        share.rows += 1
        for k in range(count):
            share.size[k] += texts[k].at[row + 1] - texts[k].at[row]


cdef inline int64_t _padded(int64_t size) noexcept:
    return (size + 7) & ~<int64_t> 7


cdef list _frame(Py_ssize_t count, Py_ssize_t segments, Share* shares, form):
    """Allocate every segment's message and write its header; shares point to its buffers."""
    cdef bytes description, message, own
    cdef Py_ssize_t rows_at, nodes_at, buffers_at, body_at, head, s, k
    cdef int64_t n, at
    cdef int64_t* numbers
    cdef char* out
    cdef Share* share
    cdef list found = []
    description, rows_at, nodes_at, buffers_at, body_at = form
    head = len(description)
    for s in range(segments):
        share = shares + s
        n = share.rows
        if n == 0:
            continue
        at = 8 * n
        for k in range(count):
            at += _padded(4 * (n + 1)) + _padded(share.size[k])
        message = PyBytes_FromStringAndSize(NULL, head + at)
        own = PyBytes_FromStringAndSize(NULL, 8 * n)
        out = PyBytes_AS_STRING(message)
        memcpy(out, PyBytes_AS_STRING(description), head)
        (<int64_t*> (out + rows_at))[0] = n
        (<int64_t*> (out + body_at))[0] = at
        numbers = <int64_t*> (out + nodes_at)
        for k in range(count + 1):
            numbers[2 * k] = n
        # Offset and length of every buffer: an empty validity bitmap and the times, then for each
        # string column an empty validity bitmap, its offsets and its bytes.
        numbers = <int64_t*> (out + buffers_at)
        out += head
        numbers[0] = numbers[1] = numbers[2] = 0
        numbers[3] = at = 8 * n
        share.stamps = <int64_t*> out
        numbers += 4
        for k in range(count):
            numbers[0] = numbers[2] = at
            numbers[1] = 0
            numbers[3] = 4 * (n + 1)
            share.bounds[k] = <int32_t*> (out + at)
            share.bounds[k][0] = 0
            at += _padded(numbers[3])
            if n % 2 == 0:
                share.bounds[k][n + 1] = 0
            numbers[4] = at
            numbers[5] = share.size[k]
            share.bytes[k] = <uint8_t*> (out + at)
            at += _padded(share.size[k])
            if share.size[k] % 8:
                memset(out + at - 8, 0, 8)
            share.size[k] = 0
            numbers += 6
        share.numbers = <int64_t*> PyBytes_AS_STRING(own)
        share.rows = 0
        share.latest = INT64_MIN
        found.append((s, n, message, own))
    return found


cdef void _fill(
    Py_ssize_t rows,
    Py_ssize_t count,
    Texts* texts,
    const int64_t* stamps,
    uint32_t* places,
    Share* shares,
) noexcept:
    """Copy every row into the message of its segment."""
    cdef Py_ssize_t row, k
    cdef int64_t n
    cdef int32_t length
    cdef Share* share
    for row in range(rows):
        share = shares + places[row]
        n = share.rows
        share.numbers[n] = row
        share.stamps[n] = stamps[row]
        share.latest = max(share.latest, stamps[row])
        n += 1
        for k in range(count):
            length = texts[k].at[row + 1] - texts[k].at[row]
            memcpy(share.bytes[k] + share.size[k], texts[k].data + texts[k].at[row], length)
            share.size[k] += length
            share.bounds[k][n] = <int32_t> share.size[k]
        share.rows = n
