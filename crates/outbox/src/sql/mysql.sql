-- Outbox of kafleet for MySQL 8 or MariaDB 10.6 or newer, which Debezium's event router reads from the binary log.
-- Rows may be deleted at any time after their commit: the binary log has them.

CREATE TABLE IF NOT EXISTS kafleet_outbox (
    seq        bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id         varchar(512) NOT NULL,
    type       varchar(255) NOT NULL,
    `key`      varchar(512) NOT NULL,
    params     longtext NOT NULL,
    fields     text NOT NULL,
    created_at timestamp(3) NOT NULL DEFAULT current_timestamp(3)
) CHARACTER SET utf8mb4;
