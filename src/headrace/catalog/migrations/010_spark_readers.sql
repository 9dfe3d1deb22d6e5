-- Spark queries that read for a reader group. A line is one checkpoint directory: what its newest
-- batch was opened with, and which batch a sink has counted last.
CREATE TABLE spark_lines (
    line TEXT PRIMARY KEY,
    group_name TEXT NOT NULL,
    reader TEXT NOT NULL,
    data {blob} NOT NULL
);
CREATE INDEX spark_lines_of_group ON spark_lines (group_name);

-- Whose rows a batch of a query has: written by its first read task, and outlives what is open.
CREATE TABLE spark_bindings (
    query TEXT NOT NULL,
    batch BIGINT NOT NULL,
    run TEXT NOT NULL,
    line TEXT NOT NULL,
    opening TEXT NOT NULL,
    planned TEXT NOT NULL,
    PRIMARY KEY (query, batch, run, line)
);

-- Which planned batches a sink has counted under the number of a query's batch.
CREATE TABLE spark_counted (
    query TEXT NOT NULL,
    batch BIGINT NOT NULL,
    planned TEXT NOT NULL,
    PRIMARY KEY (query, batch)
);
