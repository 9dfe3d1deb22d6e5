-- Named subscriptions to epochs: what each was made for, and the frontier before which all is acked.
-- The lease of the program that holds one is in leases. expires_us is when an abandoned one goes, or null.
CREATE TABLE epoch_subscriptions (
    name TEXT PRIMARY KEY,
    form {blob} NOT NULL,
    frontier {blob},
    created_us BIGINT NOT NULL,
    moved_us BIGINT NOT NULL,
    expiry_us BIGINT
);
