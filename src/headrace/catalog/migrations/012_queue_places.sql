-- Where the rows of a replicated group's work queue come from: the queue's offsets from start_offset to
-- end_offset - 1 are events of one segment of the source, and places are their offsets there, ascending
-- from first_place on.
CREATE TABLE queue_places (
    segment_id BIGINT NOT NULL,
    start_offset BIGINT NOT NULL,
    end_offset BIGINT NOT NULL,
    source_id BIGINT NOT NULL,
    first_place BIGINT NOT NULL,
    places {blob} NOT NULL,
    PRIMARY KEY (segment_id, start_offset)
);
