-- A group of writes as one statement; see postgres_calls.py. Returns {placed, offsets…, stored…}:
-- 1 if the batches are placed and else 0, the first offset of each, and 1 for each ack that is
-- stored. What is not placed or not stored has changed nothing.
CREATE OR REPLACE FUNCTION {name}(
    writer TEXT, its_number BIGINT, synced BOOLEAN, locks BIGINT[],
    a_segment BIGINT[], a_rows BIGINT[], a_bytes BIGINT[], a_ts BIGINT[],
    a_layout BIGINT[], a_checksum BIGINT[], a_path TEXT[], a_data BYTEA[],
    p_scope BIGINT, p_producer TEXT, p_sequence BIGINT, p_checksum BIGINT, p_positions BYTEA,
    p_gaps BIGINT[], p_kept BIGINT,
    k_group TEXT[], k_unit TEXT[], k_token BIGINT[], k_segment BIGINT[], k_floor BIGINT[],
    k_state BYTEA[], k_before BYTEA[]
) RETURNS BIGINT[] LANGUAGE plpgsql AS $$
DECLARE
    now_us CONSTANT BIGINT := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    v_answer BIGINT[] := '{}';
    v_fits BOOLEAN := true;
    one BIGINT;
    new_head BIGINT;
    new_ts BIGINT;
    new_total BIGINT;
    v_starts BIGINT[] := '{}';
BEGIN
    IF NOT synced THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    PERFORM pg_advisory_xact_lock_shared({lock});
    FOREACH one IN ARRAY locks LOOP
        PERFORM pg_advisory_xact_lock(one);
    END LOOP;
    PERFORM 1 FROM meta WHERE key = 'schema_version' AND value = '{version}';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the catalog was migrated' USING ERRCODE = 'HR002';
    END IF;

    IF a_segment IS NOT NULL THEN
        IF p_producer IS NOT NULL THEN
            SELECT max(sequence) INTO one FROM producers
                WHERE scope = p_scope AND producer = p_producer;
            v_fits := one IS NULL OR one < p_sequence;
        END IF;
        IF NOT v_fits THEN
            NULL;
        ELSIF array_length(a_segment, 1) = 1 THEN
            UPDATE segments SET head = head + a_rows[1], bytes = bytes + a_bytes[1],
                max_ts_us = greatest(max_ts_us, a_ts[1])
                WHERE id = a_segment[1] AND sealed_us IS NULL AND lane IS NULL
                RETURNING head, max_ts_us, bytes INTO new_head, new_ts, new_total;
            v_fits := FOUND;
            IF v_fits THEN
                v_starts := ARRAY[new_head - a_rows[1]];
                INSERT INTO batches (segment_id, start_offset, end_offset, bytes, total_bytes,
                    max_ts_us, created_us, layout, checksum, path, data)
                VALUES (a_segment[1], new_head - a_rows[1], new_head, a_bytes[1], new_total,
                    new_ts, now_us, a_layout[1], a_checksum[1], a_path[1], a_data[1]);
            END IF;
        ELSE
            SELECT count(*) = array_length(a_segment, 1) INTO v_fits FROM segments
                WHERE id = ANY (a_segment) AND sealed_us IS NULL AND lane IS NULL;
            IF v_fits THEN
                WITH given AS (
                    SELECT * FROM unnest(a_segment, a_rows, a_bytes, a_ts) WITH ORDINALITY
                        AS g (id, events, size, ts, place)
                ), taken AS (
                    UPDATE segments SET head = head + given.events, bytes = bytes + given.size,
                        max_ts_us = greatest(max_ts_us, given.ts)
                        FROM given WHERE segments.id = given.id
                        RETURNING segments.id, head, max_ts_us, bytes
                ), placed AS (
                    INSERT INTO batches (segment_id, start_offset, end_offset, bytes, total_bytes,
                        max_ts_us, created_us, layout, checksum, path, data)
                    SELECT given.id, taken.head - events, taken.head, size, taken.bytes,
                        taken.max_ts_us, now_us, a_layout[place], a_checksum[place],
                        a_path[place], a_data[place]
                        FROM given JOIN taken ON taken.id = given.id
                )
                SELECT array_agg(taken.head - given.events ORDER BY place) INTO v_starts
                    FROM given JOIN taken ON taken.id = given.id;
            END IF;
        END IF;
        IF v_fits AND p_producer IS NOT NULL THEN
            FOR at IN 1 .. array_length(p_gaps, 1) LOOP
                p_positions := overlay(p_positions PLACING int8send(v_starts[at])
                    FROM p_gaps[at]::int);
            END LOOP;
            INSERT INTO producers (scope, producer, sequence, positions, checksum)
                VALUES (p_scope, p_producer, p_sequence, p_positions, p_checksum);
            DELETE FROM producers WHERE scope = p_scope AND producer = p_producer
                AND sequence <= p_sequence - p_kept;
        END IF;
        v_answer := CASE WHEN v_fits THEN 1::bigint || v_starts ELSE ARRAY[0::bigint] END;
    END IF;

    IF k_group IS NOT NULL THEN
        FOR at IN 1 .. array_length(k_group, 1) LOOP
            v_fits := false;
            PERFORM 1 FROM claims WHERE group_name = k_group[at] AND unit = k_unit[at]
                AND token = k_token[at] AND owner IS NOT NULL;
            IF FOUND THEN
                SELECT head INTO new_head FROM segments WHERE id = k_segment[at];
                IF k_floor[at] > coalesce(new_head, -1) THEN
                    v_fits := false;
                ELSIF k_before[at] IS NOT NULL THEN
                    UPDATE progress SET floor = k_floor[at], state = k_state[at]
                        WHERE group_name = k_group[at] AND segment_id = k_segment[at]
                        AND state = k_before[at] AND floor <= k_floor[at];
                    v_fits := FOUND;
                ELSE
                    INSERT INTO progress (group_name, segment_id, floor, state)
                        VALUES (k_group[at], k_segment[at], k_floor[at], k_state[at])
                        ON CONFLICT (group_name, segment_id) DO NOTHING;
                    v_fits := FOUND;
                END IF;
            END IF;
            v_answer := v_answer || CASE WHEN v_fits THEN 1::bigint ELSE 0 END;
        END LOOP;
    END IF;

    -- Last: a number that was declared void meanwhile undoes all of the above.
    UPDATE writers SET number = its_number, seen_us = now_us, answer = v_answer
        WHERE name = writer AND number < its_number;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'writer % has no row', writer USING ERRCODE = 'HR001';
    END IF;
    RETURN v_answer;
END
$$;

-- The most frequent call by itself: one batch, synced, without a producer. Whatever does not fit is
-- raised: the long way finds out why.
CREATE OR REPLACE FUNCTION {append}(
    writer TEXT, its_number BIGINT, its_lock BIGINT, a_segment BIGINT, a_rows BIGINT,
    a_bytes BIGINT, a_ts BIGINT, a_layout BIGINT, a_checksum BIGINT, a_path TEXT, a_data BYTEA
) RETURNS BIGINT[] LANGUAGE plpgsql AS $$
DECLARE
    now_us BIGINT;
    new_head BIGINT;
    new_ts BIGINT;
    new_total BIGINT;
BEGIN
    PERFORM pg_advisory_xact_lock_shared({lock}), pg_advisory_xact_lock(its_lock);
    UPDATE segments SET head = head + a_rows, bytes = bytes + a_bytes,
        max_ts_us = greatest(max_ts_us, a_ts)
        WHERE id = a_segment AND sealed_us IS NULL AND lane IS NULL
        AND EXISTS (SELECT FROM meta WHERE key = 'schema_version' AND value = '{version}')
        RETURNING head, max_ts_us, bytes, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
        INTO new_head, new_ts, new_total, now_us;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'segment % cannot be appended to as it is', a_segment
            USING ERRCODE = 'HR002';
    END IF;
    INSERT INTO batches (segment_id, start_offset, end_offset, bytes, total_bytes, max_ts_us,
        created_us, layout, checksum, path, data)
    VALUES (a_segment, new_head - a_rows, new_head, a_bytes, new_total, new_ts, now_us, a_layout,
        a_checksum, a_path, a_data);
    UPDATE writers SET number = its_number, seen_us = now_us,
        answer = ARRAY[1, new_head - a_rows]
        WHERE name = writer AND number < its_number;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'writer % has no row', writer USING ERRCODE = 'HR001';
    END IF;
    RETURN ARRAY[1, new_head - a_rows];
END
$$
