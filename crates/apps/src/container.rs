//! Memory of the container, from the files of control groups (cgroup v2). Kubernetes ends all processes of a container that
//! exceeds its limit, the worker too, so the largest process of an app is killed before.

use std::fs;
use std::path::{Path, PathBuf};

use kafleet_model::units::bytes::Bytes;

/// Share of the limit from which a process is killed, in percent.
const NEARLY_FULL_PERCENT: u64 = 90;
/// Memory in `memory.stat` that the kernel frees when it is needed: files that can be read again, and its own caches.
const RECLAIMABLE: [&str; 3] = ["active_file", "inactive_file", "slab_reclaimable"];
/// Place of the control groups.
const ROOT: &str = "/sys/fs/cgroup";

/// Control groups of a container: its own and those above it.
#[derive(Clone, Debug)]
pub struct Container {
    folders: Vec<PathBuf>,
}

/// Memory of a container that is nearly full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Memory in use that cannot be reclaimed.
    pub used: Bytes,
    pub limit: Bytes,
}

impl Container {
    /// Finds the control groups of this process.
    pub fn of_this_process() -> Self {
        Self::find(Path::new(ROOT), &fs::read_to_string("/proc/self/cgroup").unwrap_or_default())
    }

    /// Finds the control groups below `root` that a file `/proc/PID/cgroup` names.
    pub fn find(root: &Path, membership: &str) -> Self {
        let path = membership.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let cgroup = root.join(path);
        let folders = cgroup.ancestors().take_while(|folder| folder.starts_with(root)).map(Path::to_owned).collect();
        Self { folders }
    }

    /// Returns the lowest limit of the control groups, in bytes. `None`: no limit.
    pub fn limit(&self) -> Option<u64> {
        self.folders.iter().filter_map(|folder| number(folder, "memory.max")).min()
    }

    /// Returns the memory of the first control group that is nearly full.
    pub fn shortage(&self) -> Option<Shortage> {
        self.folders.iter().find_map(|folder| shortage_of(folder))
    }
}

fn shortage_of(folder: &Path) -> Option<Shortage> {
    // The group at the root has no limit, and `max` is none.
    let limit = number(folder, "memory.max")?;
    let current = number(folder, "memory.current")?;
    if !is_nearly_full(current, limit) {
        return None;
    }
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let used = current.saturating_sub(reclaimable(&stat));
    is_nearly_full(used, limit).then(|| Shortage { used: Bytes::whole_mib(used), limit: Bytes::whole_mib(limit) })
}

fn is_nearly_full(used: u64, limit: u64) -> bool {
    u128::from(used) * 100 >= u128::from(limit) * u128::from(NEARLY_FULL_PERCENT)
}

fn number(folder: &Path, name: &str) -> Option<u64> {
    fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
}

/// Sum of the reclaimable memory in a file `memory.stat`.
fn reclaimable(stat: &str) -> u64 {
    let fields = stat.lines().filter_map(|line| line.split_once(' '));
    let reclaimable = fields.filter(|(name, _)| RECLAIMABLE.contains(name));
    reclaimable.filter_map(|(_, bytes)| bytes.parse::<u64>().ok()).fold(0, u64::saturating_add)
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { used, limit } = self;
        write!(f, "the container used {used} of its {limit} of memory, more than {NEARLY_FULL_PERCENT} %")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn write(folder: &Path, max: &str, current: u64, stat: &str) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("memory.max"), format!("{max}\n")).unwrap();
        fs::write(folder.join("memory.current"), format!("{current}\n")).unwrap();
        fs::write(folder.join("memory.stat"), stat).unwrap();
    }

    #[test]
    fn container_is_short_from_ninety_percent_on_without_caches() {
        let root = tempfile::tempdir().unwrap();
        let container = Container::find(root.path(), "0::/\n");
        let max = (1_000 * MIB).to_string();
        write(root.path(), &max, 899 * MIB, "anon 1\n");
        assert_eq!(container.shortage(), None);
        write(root.path(), &max, 900 * MIB, "anon 1\n");
        let shortage = container.shortage().unwrap();
        assert_eq!(shortage, Shortage { used: Bytes(900 * MIB), limit: Bytes(1_000 * MIB) });
        assert!(shortage.to_string().contains("900MiB of its 1000MiB"), "{shortage}");
        // Files that were read fill a container, and are given up when memory is needed.
        let caches = format!("anon 1\ninactive_file {}\nactive_file {}\nslab_reclaimable 1\n", 50 * MIB, 50 * MIB);
        write(root.path(), &max, 999 * MIB, &caches);
        assert_eq!(container.shortage(), None);
    }

    #[test]
    fn limits_of_groups_above_count_and_missing_ones_do_not() {
        let root = tempfile::tempdir().unwrap();
        let cgroup = root.path().join("pod/worker");
        let container = Container::find(root.path(), "1:name=x:/other\n0::/pod/worker\n");
        assert_eq!((container.shortage(), container.limit()), (None, None), "there are no files");
        write(&cgroup, "max", 990 * MIB, "");
        assert_eq!(container.shortage(), None);
        write(&root.path().join("pod"), &(1_000 * MIB).to_string(), 990 * MIB, "");
        assert_eq!(container.shortage().map(|shortage| shortage.limit), Some(Bytes(1_000 * MIB)));
        assert_eq!(container.limit(), Some(1_000 * MIB));
        write(&cgroup, &(500 * MIB).to_string(), 0, "");
        assert_eq!(container.limit(), Some(500 * MIB));
        assert_eq!(Container::find(root.path(), "").folders, [root.path()], "only cgroup v1");
    }
}
