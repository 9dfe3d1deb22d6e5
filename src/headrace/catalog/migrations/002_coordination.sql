-- Entries by bucket and key. A deleted entry stays as a row without value, for watchers.
CREATE TABLE buckets (
    bucket TEXT PRIMARY KEY,
    revision BIGINT NOT NULL,
    pruned_revision BIGINT NOT NULL
);
CREATE TABLE entries (
    bucket TEXT NOT NULL,
    key TEXT NOT NULL,
    value {blob},
    revision BIGINT NOT NULL,
    PRIMARY KEY (bucket, key)
);
CREATE UNIQUE INDEX entries_revision ON entries (bucket, revision);

-- A lease keeps its row, and so its token, after it has ended.
CREATE TABLE leases (
    name TEXT PRIMARY KEY,
    owner TEXT,
    token BIGINT NOT NULL,
    expires_us BIGINT NOT NULL
);

-- Who owns a unit of a group; the token outlives the owner.
CREATE TABLE claims (
    group_name TEXT NOT NULL,
    unit TEXT NOT NULL,
    owner TEXT,
    token BIGINT NOT NULL,
    PRIMARY KEY (group_name, unit)
);

-- Groups whose progress holds back retention, and how far they are.
CREATE TABLE subscriptions (
    stream_id BIGINT NOT NULL,
    group_name TEXT NOT NULL,
    created_us BIGINT NOT NULL,
    PRIMARY KEY (stream_id, group_name)
);
CREATE TABLE progress (
    group_name TEXT NOT NULL,
    segment_id BIGINT NOT NULL,
    floor BIGINT NOT NULL,
    state {blob} NOT NULL,
    PRIMARY KEY (group_name, segment_id)
);
CREATE INDEX progress_segment ON progress (segment_id);
