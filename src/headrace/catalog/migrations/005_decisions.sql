-- What was decided about a group and why. Numbers count up within a group and are never used twice:
-- the count outlives the records, and the group.
CREATE TABLE decisions (
    group_key TEXT NOT NULL,
    number BIGINT NOT NULL,
    at_us BIGINT NOT NULL,
    record {blob} NOT NULL,
    PRIMARY KEY (group_key, number)
);
CREATE TABLE decision_counts (
    group_key TEXT PRIMARY KEY,
    number BIGINT NOT NULL
);

-- When the owner of a lease was last heard, and the token whose end was recorded as a decision.
ALTER TABLE leases ADD COLUMN heard_us BIGINT NOT NULL DEFAULT 0;
ALTER TABLE leases ADD COLUMN told BIGINT NOT NULL DEFAULT 0;

-- Before this step there were three formats, none of which told from whom, to whom or why. They are
-- dropped.
DELETE FROM entries WHERE bucket = 'group-decisions' OR substr(bucket, 1, 10) = 'decisions:';
DELETE FROM buckets WHERE bucket = 'group-decisions' OR substr(bucket, 1, 10) = 'decisions:';
