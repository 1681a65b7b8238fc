//! Address of the `dev` of a folder, in a file that verbs and SDKs in this folder read: [`FILE`].
//!
//! `--api` and KAFLEET_API come first. Only URLs of this machine are read. A file whose process has ended is ignored, and overwritten by the next `dev`.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// Name of the file, in the working directory of `dev`.
const FILE: &str = ".kafleet-dev.json";
/// Maximum size of the file, in bytes.
const MAX_BYTES: u64 = 4_096;

/// Contents of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Address {
    /// URL of the API.
    api: String,
    pid: i32,
}

/// File of this process, removed when dropped.
pub(super) struct AddressFile(PathBuf);

impl AddressFile {
    /// Writes the address of this process.
    ///
    /// # Errors
    /// Another `dev` serves in this folder, or the file cannot be written; the text says what to do.
    pub(super) fn write(folder: &Path, url: &str) -> Result<Self, String> {
        let path = folder.join(FILE);
        let own = Address { api: url.to_owned(), pid: i32::try_from(std::process::id()).unwrap_or_default() };
        if let Some(other) = read_serving(&path).filter(|other| other.pid != own.pid) {
            let advice = format!("set KAFLEET_API={url} for this one, or start it in another folder");
            return Err(format!("another `kafleet dev` of this folder serves at {}: {advice}", other.api));
        }
        let advice = format!("set KAFLEET_API={url} for other commands");
        let failed = |error: std::io::Error| format!("`{}` cannot be written: {error}; {advice}", path.display());
        // Replaced as a whole, so that no reader sees a part of it.
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        let text = serde_json::to_string(&own).map_err(|error| failed(error.into()))?;
        writeln!(file, "{text}").map_err(failed)?;
        file.persist(&path).map_err(|error| failed(error.error))?;
        Ok(Self(path))
    }
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        let is_own = |address: &Address| u32::try_from(address.pid) == Ok(std::process::id());
        if read(&self.0).as_ref().is_some_and(is_own) {
            let _ = fs::remove_file(&self.0);
        }
    }
}

/// Returns the URL of the `dev` that serves in a folder.
pub(in crate::cli) fn url_in(folder: &Path) -> Option<String> {
    read_serving(&folder.join(FILE)).map(|address| address.api)
}

/// Returns the address of a process that lives on this machine.
fn read_serving(path: &Path) -> Option<Address> {
    read(path).filter(|address| is_loopback(&address.api) && is_alive(address.pid))
}

/// The file may come with a downloaded folder, and its URL gets the token: only this machine is asked.
fn is_loopback(url: &str) -> bool {
    let Some((host, port)) = url.strip_prefix("http://").and_then(|address| address.rsplit_once(':')) else {
        return false;
    };
    ["127.0.0.1", "localhost", "[::1]"].contains(&host) && port.parse::<u16>().is_ok()
}

fn read(path: &Path) -> Option<Address> {
    let is_small = fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() <= MAX_BYTES);
    serde_json::from_str(&is_small.then(|| fs::read_to_string(path).ok())??).ok()
}

/// A process of another user exists too.
fn is_alive(pid: i32) -> bool {
    pid > 0 && kill(Pid::from_raw(pid), None).map_or_else(|error| error == Errno::EPERM, |()| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_found_while_its_process_lives() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        assert_eq!(url_in(folder.path()), None);
        let file = AddressFile::write(folder.path(), "http://127.0.0.1:8081").unwrap();
        assert_eq!(url_in(folder.path()).as_deref(), Some("http://127.0.0.1:8081"));
        drop(file);
        assert!(!path.exists());

        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        fs::write(&path, format!("{{\"api\":\"http://127.0.0.1:8080\",\"pid\":{}}}", child.id())).unwrap();
        let refused = AddressFile::write(folder.path(), "http://b").err().unwrap();
        assert!(
            refused.contains("serves at http://127.0.0.1:8080") && refused.contains("KAFLEET_API=http://b"),
            "{refused}"
        );
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(url_in(folder.path()), None, "the process has ended");
        drop(AddressFile::write(folder.path(), "http://b").unwrap());

        for url in [
            "http://example.org:80",
            "https://127.0.0.1:80",
            "http://127.0.0.1:80@example.org:80",
            "http://127.0.0.1:80/x",
        ] {
            fs::write(&path, format!("{{\"api\":\"{url}\",\"pid\":{}}}", std::process::id())).unwrap();
            assert_eq!(url_in(folder.path()), None, "{url}");
        }
        fs::write(&path, "no JSON").unwrap();
        assert_eq!(url_in(folder.path()), None);
        drop(AddressFile::write(folder.path(), "http://b").unwrap());
    }
}
