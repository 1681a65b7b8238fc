//! Statements of the relay. Each is a transaction of its own and sent with its types, without a prepared statement, so that poolers
//! may give each another connection.

/// Identity of the outbox, and whether the server is new enough.
pub(super) const IDENTITY: &str =
    "SELECT identity::text, current_setting('server_version_num')::int FROM kafleet_outbox_relay";

/// Takes or renews the lease. Parameters: holder, span in milliseconds.
pub(super) const LEASE: &str = "UPDATE kafleet_outbox_relay
SET holder = $1, until = clock_timestamp() + $2 * interval '1 millisecond'
WHERE holder IS NULL OR holder = $1 OR until IS NULL OR until < clock_timestamp()";

pub(super) const HOLDER: &str = "SELECT coalesce(holder, '') FROM kafleet_outbox_relay";

pub(super) const RELEASE: &str = "UPDATE kafleet_outbox_relay SET holder = NULL, until = NULL WHERE holder = $1";

/// Rows of gaps and behind a number, with the snapshot. Without rows, one of NULLs has the snapshot. Parameters: first and last numbers
/// of the gaps, number, limit, maximum bytes of a column, maximum bytes of all.
pub(super) const SCAN: &str = "WITH found AS (
    SELECT * FROM (
        (SELECT o.* FROM unnest($1::int8[], $2::int8[]) AS gap(first, last)
         JOIN LATERAL (SELECT * FROM kafleet_outbox o WHERE o.seq BETWEEN gap.first AND gap.last ORDER BY o.seq LIMIT $4) o ON true
         ORDER BY o.seq LIMIT $4)
        UNION ALL
        (SELECT * FROM kafleet_outbox WHERE seq > $3 ORDER BY seq LIMIT $4)
    ) every ORDER BY seq LIMIT $4
), sized AS (
    SELECT *, octet_length(params::text) AS params_bytes, coalesce(octet_length(fields::text), 0) AS fields_bytes FROM found
), summed AS (
    SELECT *, sum(least(params_bytes, $5) + least(fields_bytes, $5)) OVER (ORDER BY seq) AS total,
           row_number() OVER (ORDER BY seq) AS number
    FROM sized
)
SELECT s.oldest, s.next, r.seq, r.id, r.type, r.key,
       CASE WHEN r.params_bytes <= $5 THEN r.params::text END,
       CASE WHEN r.fields_bytes <= $5 THEN r.fields::text END,
       r.fields_bytes > $5,
       (extract(epoch FROM r.created_at) * 1000)::int8
FROM (SELECT pg_snapshot_xmin(c)::text::int8 AS oldest, pg_snapshot_xmax(c)::text::int8 AS next
      FROM pg_current_snapshot() AS c) s
LEFT JOIN summed r ON r.total <= $6 OR r.number = 1
ORDER BY r.seq";

/// Deletes published rows and moves dead ones. Parameters: numbers and ids of both, numbers and ids of dead rows, reasons.
pub(super) const FINISH: &str = "WITH gone AS (
    DELETE FROM kafleet_outbox
    WHERE seq = ANY($1::int8[]) AND (seq, id) IN (SELECT * FROM unnest($1::int8[], $2::text[]))
    RETURNING *
)
INSERT INTO kafleet_outbox_dead (seq, id, type, key, params, fields, created_at, reason)
SELECT g.seq, g.id, g.type, g.key, g.params, g.fields, g.created_at, d.reason
FROM unnest($3::int8[], $4::text[], $5::text[]) AS d(seq, id, reason)
JOIN gone g ON g.seq = d.seq AND g.id = d.id
ON CONFLICT (seq, id) DO UPDATE SET params = excluded.params, fields = excluded.fields, reason = excluded.reason,
    type = excluded.type, key = excluded.key, created_at = excluded.created_at, died_at = clock_timestamp()";

pub(super) const STATS: &str = "SELECT count(*), min(seq),
       coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8,
       (SELECT count(*) FROM kafleet_outbox_dead)
FROM kafleet_outbox";

pub(super) const DEAD_ROWS: &str = "SELECT seq, id, type, reason, (extract(epoch FROM created_at) * 1000)::int8,
       (extract(epoch FROM died_at) * 1000)::int8
FROM kafleet_outbox_dead ORDER BY died_at DESC, seq DESC LIMIT $1";

/// Moves dead rows back. Parameter: ids, or NULL for all.
pub(super) const RETRY_DEAD: &str = "WITH gone AS (
    DELETE FROM kafleet_outbox_dead WHERE $1::text[] IS NULL OR id = ANY($1) RETURNING *
)
INSERT INTO kafleet_outbox (id, type, key, params, fields)
SELECT id, type, key, params, fields FROM gone ORDER BY seq";

pub(super) const DROP_DEAD: &str = "DELETE FROM kafleet_outbox_dead WHERE $1::text[] IS NULL OR id = ANY($1)";
