-- Reader groups: a snapshot of each group's state, and the log of what changed since. The row of a
-- group stays, without config, when the group is deleted: the next one of its name counts its
-- revisions on. stamp is a hash over the whole log up to revision.
CREATE TABLE reader_groups (
    name TEXT PRIMARY KEY,
    config {blob},
    revision BIGINT NOT NULL,
    stamp BIGINT NOT NULL,
    snapshot_revision BIGINT NOT NULL,
    snapshot_stamp BIGINT NOT NULL,
    log_bytes BIGINT NOT NULL
);
CREATE TABLE reader_snapshots (
    group_name TEXT NOT NULL,
    part BIGINT NOT NULL,
    data {blob} NOT NULL,
    PRIMARY KEY (group_name, part)
);
CREATE TABLE reader_log (
    group_name TEXT NOT NULL,
    revision BIGINT NOT NULL,
    at_us BIGINT NOT NULL,
    data {blob} NOT NULL,
    PRIMARY KEY (group_name, revision)
);

-- What was acked in each segment at a checkpoint, which is known by the revision that created it.
CREATE TABLE reader_checkpoints (
    group_name TEXT NOT NULL,
    created BIGINT NOT NULL,
    segment_id BIGINT NOT NULL,
    floor BIGINT NOT NULL,
    state {blob} NOT NULL,
    PRIMARY KEY (group_name, created, segment_id)
);
