//! Commits a purchase with its task: `DATABASE_URL=postgres://localhost/shop cargo run -p kafleet-sqlx --example order -- 42`,
//! after `kafleet outbox schema | psql "$DATABASE_URL"`.

use kafleet_client::NewTask;
use kafleet_sqlx::submit_in;
use sqlx::{Connection, PgConnection};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let order: i64 = std::env::args().nth(1).ok_or("usage: order NUMBER")?.parse()?;
    let mut connection = PgConnection::connect(&std::env::var("DATABASE_URL")?).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS purchases (id bigint PRIMARY KEY)").execute(&mut connection).await?;
    let mut tx = connection.begin().await?;
    sqlx::query("INSERT INTO purchases (id) VALUES ($1)").bind(order).execute(&mut *tx).await?;
    let invoice = NewTask::new("invoice", serde_json::json!({ "order": order })).id(format!("invoice-{order}"));
    let id = submit_in(&mut tx, invoice).await?;
    tx.commit().await?;
    println!("{id}");
    Ok(())
}
