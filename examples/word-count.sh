#!/bin/sh
# A task type without any Rust: counts the words of a text.
#
#   echo '{"text": "to be or not to be"}' | examples/word-count.sh
#
# stdin: the params as JSON. stdout: the result as JSON. stderr: lines for the task's log; {"progress": …} is progress.
# Exit code 0: done. 75: try again later. Any other: failed.
set -eu

params=$(cat)
# The schema of the type has made sure that `text` is a string; escapes such as \n part words, too.
text=$(printf '%s' "$params" | sed 's/.*"text" *: *"//; s/"[^"]*$//; s/\\[nrt]/ /g')

echo '{"progress": "counting"}' >&2
printf '{"words":%d}\n' "$(printf '%s' "$text" | wc -w)"
