-- Very many acked ranges of a row of progress, apart from it: what a commit does not write again.
-- The row's state names the one that it stands on; name is a digest of ranges.
CREATE TABLE progress_bases (
    group_name TEXT NOT NULL,
    segment_id BIGINT NOT NULL,
    name {blob} NOT NULL,
    ranges {blob} NOT NULL,
    PRIMARY KEY (group_name, segment_id, name)
);
CREATE INDEX progress_bases_segment ON progress_bases (segment_id);
