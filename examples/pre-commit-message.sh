#!/bin/sh
# A commit-msg hook: refuses a message that only says what was changed. It never stops a commit because openjev
# itself has a problem (no model, no server), or because the model is unsure.
#
#   cp examples/pre-commit-message.sh .git/hooks/commit-msg
set -u
question='why: Does this commit message give a reason for the change, or need none?'
openjev ask "$1" -Q "$question" --fail-if 'why < 0.2' --unsure 0.1..0.3 --format value --quiet >/dev/null
case $? in
    1)
        echo "The commit message does not say why; add a line, or use: git commit --no-verify" >&2
        exit 1
        ;;
    *) exit 0 ;;
esac
