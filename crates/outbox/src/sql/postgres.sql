-- Outbox of kafleet, for PostgreSQL 13 or newer. May be applied again: it keeps rows.
-- Tables are created in the first schema of search_path.

CREATE TABLE IF NOT EXISTS kafleet_outbox (
    seq        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id         text NOT NULL,
    type       text NOT NULL,
    key        text,
    params     json NOT NULL DEFAULT 'null',
    fields     json,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Rows that are no valid tasks, with the reason: `kafleet outbox list`.
CREATE TABLE IF NOT EXISTS kafleet_outbox_dead (
    seq        bigint NOT NULL,
    id         text NOT NULL,
    type       text NOT NULL,
    key        text,
    params     json NOT NULL,
    fields     json,
    created_at timestamptz NOT NULL,
    reason     text NOT NULL,
    died_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (seq, id)
);

-- One row: the identity of this outbox, and the relay that serves it.
CREATE TABLE IF NOT EXISTS kafleet_outbox_relay (
    single   boolean PRIMARY KEY DEFAULT true CHECK (single),
    identity uuid NOT NULL DEFAULT gen_random_uuid(),
    holder   text,
    until    timestamptz
) WITH (fillfactor = 10);
INSERT INTO kafleet_outbox_relay DEFAULT VALUES ON CONFLICT DO NOTHING;

-- Submits a task with the transaction of the caller, and returns its id.
CREATE OR REPLACE FUNCTION kafleet_submit(
    type text, params json DEFAULT 'null', id text DEFAULT NULL, key text DEFAULT NULL, fields json DEFAULT NULL
) RETURNS text LANGUAGE sql VOLATILE AS $$
    INSERT INTO kafleet_outbox (id, type, key, params, fields)
    VALUES (coalesce(kafleet_submit.id, gen_random_uuid()::text), kafleet_submit.type, kafleet_submit.key,
            coalesce(kafleet_submit.params, 'null'), kafleet_submit.fields)
    RETURNING kafleet_outbox.id
$$;
