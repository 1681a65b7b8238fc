//! `attachments`: small values kept with a task.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;

use super::client::Method;
use super::exit::{Code, Failure, Outcome};
use super::globals::Globals;
use super::output::{Field, Output, Rows};
use crate::api::documents::{AttachmentDocument, Attachments};
use crate::model::record::attachment::{BYTES, MAX_BYTES};

#[derive(Debug, Subcommand)]
pub enum AttachmentsVerb {
    /// Show what is attached to a task
    List(ListArgs),
    /// Attach a file, or replace what has its name
    Put(PutArgs),
    /// Write one to stdout or into a file
    Get(GetArgs),
    /// Take one away
    Delete(DeleteArgs),
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// The task's id
    pub id: String,
}

#[derive(Debug, Args)]
pub struct PutArgs {
    /// The task's id
    pub id: String,
    /// What it is to be called
    pub name: String,
    /// The file; `-` is stdin
    pub file: PathBuf,
    /// Its media type
    #[arg(long, value_name = "TYPE", default_value = BYTES)]
    pub media: String,
}

#[derive(Debug, Args)]
pub struct GetArgs {
    /// The task's id
    pub id: String,
    /// What it is called
    pub name: String,
    /// Where to write it [default: stdout]
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// The task's id
    pub id: String,
    /// What it is called
    pub name: String,
}

pub async fn attachments(verb: AttachmentsVerb, globals: &Globals) -> Outcome {
    let (client, screen) = (globals.client()?, globals.screen());
    let path = |id, name| ["v1", "tasks", id, "attachments", name];
    match verb {
        AttachmentsVerb::List(ListArgs { id }) => {
            let found: Attachments = client.get(&["v1", "tasks", &id, "attachments"], &Vec::new()).await?;
            let none = format!("`{id}` has no attachments; `kafleet attachments put {id} NAME FILE` adds one");
            show(&screen, &found, &found.attachments, &none)?;
        }
        AttachmentsVerb::Put(PutArgs { id, name, file, media }) => {
            let put: AttachmentDocument = client.put_bytes(&path(&id, &name), &media, read(&file)?).await?;
            show(&screen, &put, std::slice::from_ref(&put), "")?;
        }
        AttachmentsVerb::Get(GetArgs { id, name, to }) => {
            let data = client.get_bytes(&path(&id, &name)).await?;
            match to {
                Some(file) => std::fs::write(&file, data)
                    .map_err(|why| Failure::failed(format_args!("`{}` cannot be written: {why}", file.display())))?,
                None => std::io::stdout().lock().write_all(&data)?,
            }
        }
        AttachmentsVerb::Delete(DeleteArgs { id, name }) => {
            let gone: AttachmentDocument = client.call(Method::DELETE, &path(&id, &name), None::<&()>).await?;
            show(&screen, &gone, std::slice::from_ref(&gone), "")?;
        }
    }
    Ok(Code::Ok)
}

/// More than the api takes is not read.
fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    let mut data = Vec::new();
    let most = MAX_BYTES as u64 + 1;
    let read = match file.as_os_str() == "-" {
        true => std::io::stdin().lock().take(most).read_to_end(&mut data),
        false => std::fs::File::open(file).and_then(|open| open.take(most).read_to_end(&mut data)),
    };
    read.map_err(|why| Failure::usage(format_args!("`{}` cannot be read: {why}", file.display())))?;
    if data.len() > MAX_BYTES {
        return Err(Failure::usage(format_args!("`{}` has more than {MAX_BYTES} bytes", file.display()))
            .hint("put it elsewhere, and set where it is with `kafleet set ID --link URL`"));
    }
    Ok(data)
}

/// The api's document for programs, a table for people; `none` where it is empty.
fn show(screen: &Output, document: &impl Serialize, attachments: &[AttachmentDocument], none: &str) -> Result<(), Failure> {
    if screen.is_json() {
        return screen.json(document);
    }
    let mut rows = Rows::new(["NAME", "TYPE", "BYTES", "AT"]);
    for attachment in attachments {
        let AttachmentDocument { name, media, bytes, at } = attachment.clone();
        rows.add([Field::Text(name), Field::Text(media), Field::Number(bytes.into()), Field::Text(at)]);
    }
    screen.list(rows, none)
}
