
-- Wakes the relay at each commit. A NOTIFY holds a lock of the whole cluster until its commit is flushed, so that all notifying
-- commits wait for each other: use it below 200 commits per second.
CREATE OR REPLACE FUNCTION kafleet_outbox_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('kafleet_outbox', '');
    RETURN NULL;
END
$$;
DROP TRIGGER IF EXISTS kafleet_outbox_notify ON kafleet_outbox;
CREATE TRIGGER kafleet_outbox_notify AFTER INSERT ON kafleet_outbox
    FOR EACH STATEMENT EXECUTE FUNCTION kafleet_outbox_notify();
