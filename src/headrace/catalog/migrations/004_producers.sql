-- A checksum of the events that a sequence stands for; null where it was not recorded.
ALTER TABLE producers ADD COLUMN checksum BIGINT;
