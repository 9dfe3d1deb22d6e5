-- The ledger of an epoch stream: held times, merged frontiers, the number of the next line. since is
-- the first frontier from which all rows are still there, and kept_line the first line of the
-- progress log that has a retained row; both are null until something was trimmed. moved_us is when
-- the frontier moved last. A stream without a row has had no publisher yet.
CREATE TABLE epoch_streams (
    stream_id BIGINT PRIMARY KEY,
    state {blob} NOT NULL,
    moved_us BIGINT NOT NULL,
    since {blob},
    kept_line BIGINT
);

-- What each publisher holds. moved_us is when its held times changed last, last_us when it committed.
CREATE TABLE epoch_publishers (
    stream_id BIGINT NOT NULL,
    name TEXT NOT NULL,
    state {blob} NOT NULL,
    moved_us BIGINT NOT NULL,
    last_us BIGINT NOT NULL,
    PRIMARY KEY (stream_id, name)
);
