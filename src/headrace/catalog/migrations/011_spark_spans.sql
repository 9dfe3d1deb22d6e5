-- What the newest opening of a line reads of each segment, with the progress that was found then
-- (none: there was no row) and the one that counting it leaves. A sink compares and writes them
-- all in a few statements, however many there are.
CREATE TABLE spark_spans (
    line TEXT NOT NULL,
    segment_id BIGINT NOT NULL,
    unit TEXT NOT NULL,
    token BIGINT NOT NULL,
    ranges {blob} NOT NULL,
    was {blob},
    floor BIGINT NOT NULL,
    state {blob} NOT NULL,
    PRIMARY KEY (line, segment_id)
);

-- When something was last stored of a line; 0: before there was this column.
ALTER TABLE spark_lines ADD COLUMN used_us BIGINT NOT NULL DEFAULT 0;
