//! Output of a process that has crashed, without frames that are not of the user's code.
//!
//! Python's faulthandler and Node write the stack of each thread from the handler down to the start of the process. The last
//! lines, which a failure quotes, would then be those of the SDK alone.

/// Files of the SDKs and of the interpreters in frames. Installed packages and this repository; a user's own folder may be
/// called `kafleet` too.
const HIDDEN_FILES: [&str; 8] = [
    "-packages/kafleet/",
    "/sdk/python/kafleet/",
    "/threading.py\", ",
    "/asyncio/",
    "\"<frozen ",
    "/node_modules/kafleet/dist/",
    "/sdk/typescript/dist/",
    "(node:",
];

/// Removes the frames of the SDK and of the interpreter, and the headings of stacks that have no others. An output that
/// would be empty is kept.
pub(crate) fn without_hidden_frames(output: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for line in output.lines().filter(|line| !is_hidden(line)) {
        // A stack ends before the next one, or with an empty line.
        if (line.trim().is_empty() || is_heading(line)) && kept.last().is_some_and(|last| is_heading(last)) {
            kept.pop();
        }
        kept.push(line);
    }
    if kept.last().is_some_and(|last| is_heading(last)) {
        kept.pop();
    }
    let is_empty = kept.iter().all(|line| line.trim().is_empty());
    if is_empty { output.to_owned() } else { kept.join("\n") }
}

/// Returns whether a line is a frame that says nothing about the user's code.
fn is_hidden(line: &str) -> bool {
    let text = line.trim_start();
    let is_python = text.starts_with("File \"") && text.contains(", line ");
    let of_node = numbered(text);
    let is_native = text.starts_with("Binary file \"") || of_node.is_some_and(|frame| frame.starts_with("0x"));
    let is_frame = is_python || of_node.is_some() || text.starts_with("at ");
    is_native || (is_frame && HIDDEN_FILES.iter().any(|file| text.contains(file)))
}

/// Returns the text behind the number of a frame, such as `2: compute (file:///srv/tasks.ts:3:35)`.
fn numbered(text: &str) -> Option<&str> {
    let (number, frame) = text.split_once(": ")?;
    (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(frame)
}

/// Returns whether a line is the heading of a stack.
fn is_heading(line: &str) -> bool {
    line.ends_with(" (most recent call first):") || (line.starts_with("-----") && line.ends_with(" stack trace -----"))
}

#[cfg(test)]
mod tests {
    use super::without_hidden_frames;

    #[test]
    fn frames_of_the_sdk_are_removed_from_stacks_of_python() {
        let output = "about to die\nFatal Python error: Aborted\n\nThread 0x01 [kafleet-loop] (most recent call first):\n  \
            File \"/usr/lib/python3.11/site-packages/kafleet/loop.py\", line 5 in _run_loop\n  \
            File \"<frozen runpy>\", line 88 in _run_code\n\n\
            Current thread 0x02 [MainThread] (most recent call first):\n  \
            File \"/srv/kafleet/tasks.py\", line 9 in deeper\n  \
            File \"/src/sdk/python/kafleet/threads.py\", line 38 in run\n  \
            File \"/usr/lib/python3.11/threading.py\", line 982 in run\n\n\
            Current thread's C stack trace (most recent call first):\n  \
            Binary file \"/usr/bin/python3\", at abort+0xd3 [0x7f347aed9472]\n\nExtension modules: numpy (total: 1)\n";
        let expected = "about to die\nFatal Python error: Aborted\n\n\n\
            Current thread 0x02 [MainThread] (most recent call first):\n  \
            File \"/srv/kafleet/tasks.py\", line 9 in deeper\n\n\nExtension modules: numpy (total: 1)";
        assert_eq!(without_hidden_frames(output), expected);
    }

    #[test]
    fn frames_of_the_sdk_are_removed_from_stacks_of_node() {
        let output = "FATAL ERROR: out of memory\n----- Native stack trace -----\n\n 1: 0x931db0  [node]\n12: 0x75968e f() [node]\n\
            ----- JavaScript stack trace -----\n\n1: deeper (file:///srv/tasks.ts:3:35)\n\
            2: #run (file:///srv/node_modules/kafleet/dist/attempt.js:115:58)\n\
            3: processTicksAndRejections (node:internal/process/task_queues:104:5)\n";
        // The heading of Node is followed by an empty line.
        let expected = "FATAL ERROR: out of memory\n\n\n1: deeper (file:///srv/tasks.ts:3:35)";
        assert_eq!(without_hidden_frames(output), expected);
    }

    #[test]
    fn other_lines_and_an_output_of_nothing_else_are_kept() {
        for output in ["about to die", "12: 7 (node:", "at noon", "", "  File \"<frozen runpy>\", line 1 in f\n"] {
            assert_eq!(without_hidden_frames(output), output);
        }
    }
}
