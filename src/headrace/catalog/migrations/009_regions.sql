-- Regions. segments.lane is what events that are published here belong to: null while the stream is
-- in no other region, empty where it is linked and not written.
ALTER TABLE segments ADD COLUMN lane TEXT;

-- Where the events of a linked segment come from: the offsets from start_offset to end_offset - 1 are
-- the events of a lane from a sequence on. Offsets that no run covers are markers. The last run of a
-- lane stays when it is trimmed, since it tells the lane's next sequence.
CREATE TABLE lane_runs (
    segment_id BIGINT NOT NULL,
    start_offset BIGINT NOT NULL,
    end_offset BIGINT NOT NULL,
    lane TEXT NOT NULL,
    sequence BIGINT NOT NULL,
    PRIMARY KEY (segment_id, start_offset)
);
CREATE INDEX lane_runs_lane ON lane_runs (segment_id, lane, sequence);

-- A lane that was met in the middle, or that has a gap: its next event has at least this sequence.
CREATE TABLE lane_starts (
    segment_id BIGINT NOT NULL,
    lane TEXT NOT NULL,
    sequence BIGINT NOT NULL,
    PRIMARY KEY (segment_id, lane)
);

-- How far the segments of other regions were copied. source_id is the number of the segment there,
-- which a stream that is made anew does not have; missed counts events that were gone before they came.
CREATE TABLE replica_places (
    segment_id BIGINT NOT NULL,
    source TEXT NOT NULL,
    source_id BIGINT NOT NULL,
    next_offset BIGINT NOT NULL,
    missed BIGINT NOT NULL,
    moved_us BIGINT NOT NULL,
    PRIMARY KEY (segment_id, source)
);

-- Progress of replicated groups by origin. reader is the name of a row in progress, and what that
-- row held when it was last translated is in local. ahead is 1 if acks are known whose events are
-- not here yet; sought is 1 after a seek here that is not translated yet, 2 after one to the end.
CREATE TABLE region_cursors (
    reader TEXT NOT NULL,
    segment_id BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    ahead BIGINT NOT NULL,
    sought BIGINT NOT NULL,
    state {blob} NOT NULL,
    local {blob} NOT NULL,
    PRIMARY KEY (reader, segment_id)
);
CREATE INDEX region_cursors_revision ON region_cursors (revision);

-- What readers had acked when a part of a linked segment was trimmed, so that what nobody had
-- consumed never counts as acked elsewhere.
CREATE TABLE region_trims (
    segment_id BIGINT NOT NULL,
    reader TEXT NOT NULL,
    upto BIGINT NOT NULL,
    floor BIGINT NOT NULL,
    state {blob} NOT NULL,
    PRIMARY KEY (segment_id, reader, upto)
);
