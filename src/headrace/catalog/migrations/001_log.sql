-- Streams, their segments and the batches of events in them.
CREATE TABLE streams (
    id {identity},
    name TEXT NOT NULL UNIQUE,
    config {blob} NOT NULL,
    created_us BIGINT NOT NULL,
    next_segment BIGINT NOT NULL
);

-- range_lo <= key hash < range_hi; head is the next offset, tail the first retained one.
-- max_ts_us is the greatest event time so far; sealed_us is null while the segment is open.
CREATE TABLE segments (
    id {identity},
    stream_id BIGINT NOT NULL,
    number BIGINT NOT NULL,
    range_lo BIGINT NOT NULL,
    range_hi BIGINT NOT NULL,
    head BIGINT NOT NULL,
    tail BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    trimmed_bytes BIGINT NOT NULL,
    max_ts_us BIGINT NOT NULL,
    created_us BIGINT NOT NULL,
    sealed_us BIGINT,
    UNIQUE (stream_id, number)
);

CREATE TABLE segment_edges (
    stream_id BIGINT NOT NULL,
    predecessor BIGINT NOT NULL,
    successor BIGINT NOT NULL,
    PRIMARY KEY (stream_id, predecessor, successor)
);

-- A batch is an Arrow blob in data, or a Parquet file at path. max_ts_us is the greatest event
-- time and total_bytes the segment's size up to and with this batch, so both never fall and can
-- be searched.
CREATE TABLE batches (
    id {serial},
    segment_id BIGINT NOT NULL,
    start_offset BIGINT NOT NULL,
    end_offset BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    total_bytes BIGINT NOT NULL,
    max_ts_us BIGINT NOT NULL,
    created_us BIGINT NOT NULL,
    layout BIGINT NOT NULL,
    checksum BIGINT NOT NULL,
    path TEXT,
    data {blob}
);
CREATE UNIQUE INDEX batches_place ON batches (segment_id, start_offset);
CREATE INDEX batches_path ON batches (path) WHERE path IS NOT NULL;

-- What idempotent producers have appended, so that a repeat is answered and not written.
CREATE TABLE producers (
    scope BIGINT NOT NULL,
    producer TEXT NOT NULL,
    sequence BIGINT NOT NULL,
    positions {blob} NOT NULL,
    PRIMARY KEY (scope, producer, sequence)
);

-- Files that no batch names any more; removed once running reads have had time to finish.
CREATE TABLE graveyard (
    path TEXT PRIMARY KEY,
    buried_us BIGINT NOT NULL
);
