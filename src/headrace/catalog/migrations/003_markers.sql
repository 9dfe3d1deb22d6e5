-- Where markers stand among the events of a segment, so that they are not counted as events. total
-- is the number of markers in the segment up to and with this one; the difference of two tells how
-- many lie between. segments.markers is how many are retained. Before this step none were written.
CREATE TABLE markers (
    segment_id BIGINT NOT NULL,
    at_offset BIGINT NOT NULL,
    total BIGINT NOT NULL,
    PRIMARY KEY (segment_id, at_offset)
);
ALTER TABLE segments ADD COLUMN markers BIGINT NOT NULL DEFAULT 0;
