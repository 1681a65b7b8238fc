//! `attachments`: small values stored with a task.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use kafleet_documents::{AttachmentDocument, Attachments};
use kafleet_model::record::attachment::{BYTES, MAX_BYTES};
use serde::Serialize;

use super::client::Method;
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Field, Output, Rows};

#[derive(Debug, Subcommand)]
pub(super) enum AttachmentsVerb {
    /// List the attachments of a task
    List(AttachmentListArgs),
    /// Attach a file; replaces an attachment of the same name
    Put(PutArgs),
    /// Write an attachment to stdout or to a file
    Get(GetArgs),
    /// Delete an attachment
    Delete(DeleteArgs),
}

#[derive(Debug, Args)]
pub(super) struct AttachmentListArgs {
    /// The task's id
    pub id: String,
}

#[derive(Debug, Args)]
pub(super) struct PutArgs {
    /// The task's id
    pub id: String,
    /// Name of the attachment
    pub name: String,
    /// File to attach; `-` reads stdin
    pub file: PathBuf,
    /// Media type of the content
    #[arg(long, value_name = "TYPE", default_value = BYTES)]
    pub media: String,
}

#[derive(Debug, Args)]
pub(super) struct GetArgs {
    /// The task's id
    pub id: String,
    /// Name of the attachment
    pub name: String,
    /// File to write to [default: stdout]
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct DeleteArgs {
    /// The task's id
    pub id: String,
    /// Name of the attachment
    pub name: String,
}

pub(super) async fn attachments(verb: AttachmentsVerb, globals: &Globals) -> Outcome {
    let client = globals.client()?;
    let output = globals.output();
    let path = |id, name| ["v1", "tasks", id, "attachments", name];
    match verb {
        AttachmentsVerb::List(AttachmentListArgs { id }) => {
            let listing: Attachments = client.get(&["v1", "tasks", &id, "attachments"], &Vec::new()).await?;
            let empty = format!("`{id}` has no attachments; `kafleet attachments put {id} NAME FILE` adds one");
            show(&output, &listing, &listing.attachments, &empty)?;
        }
        AttachmentsVerb::Put(PutArgs { id, name, file, media }) => {
            let put: AttachmentDocument = client.put_bytes(&path(&id, &name), &media, read(&file)?).await?;
            show(&output, &put, std::slice::from_ref(&put), "")?;
        }
        AttachmentsVerb::Get(GetArgs { id, name, to }) => {
            write(&client.get_bytes(&path(&id, &name)).await?, to.as_deref())?;
        }
        AttachmentsVerb::Delete(DeleteArgs { id, name }) => {
            let deleted: AttachmentDocument = client.call(Method::DELETE, &path(&id, &name), None::<&()>).await?;
            output.json_or_line(&deleted, |_| format!("`{name}` of `{id}` is deleted"))?;
        }
    }
    Ok(Code::Ok)
}

/// Writes data to a file, or to stdout without one.
fn write(data: &[u8], file: Option<&Path>) -> Result<(), Failure> {
    match file {
        Some(file) => std::fs::write(file, data)
            .map_err(|error| Failure::failed(format_args!("`{}` cannot be written: {error}", file.display()))),
        None => {
            let mut stdout = std::io::stdout().lock();
            stdout.write_all(data)?;
            Ok(stdout.flush()?)
        }
    }
}

/// Reads a file, or stdin for `-`, up to the API's limit; a larger one is an error.
fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    let mut data = Vec::new();
    let limit = MAX_BYTES as u64 + 1;
    let read = if file.as_os_str() == "-" {
        std::io::stdin().lock().take(limit).read_to_end(&mut data)
    } else {
        std::fs::File::open(file).and_then(|open| open.take(limit).read_to_end(&mut data))
    };
    read.map_err(|error| Failure::usage(format_args!("`{}` cannot be read: {error}", file.display())))?;
    if data.len() > MAX_BYTES {
        return Err(Failure::usage(format_args!("`{}` has more than {MAX_BYTES} bytes", file.display()))
            .hint("store it elsewhere and link to it with `kafleet update ID --link URL`"));
    }
    Ok(data)
}

/// Prints the API's document as JSON, or a table; `empty` is the message for an empty table.
fn show(
    output: &Output,
    document: &impl Serialize,
    attachments: &[AttachmentDocument],
    empty: &str,
) -> Result<(), Failure> {
    if output.is_json() {
        return output.json(document);
    }
    let mut rows = Rows::new(["NAME", "TYPE", "BYTES", "AT"]);
    for attachment in attachments {
        let AttachmentDocument { name, media, bytes, at } = attachment.clone();
        rows.add([Field::Text(name), Field::Text(media), Field::Number(bytes.into()), Field::Text(at)]);
    }
    output.list(rows, empty)
}
