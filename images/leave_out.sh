#!/bin/sh
# Removes from the current folder what a list names, a pattern each line. A pattern that finds nothing
# is an error: the list would no longer say what is left out.
# Usage: leave_out.sh LIST
set -eu
export LC_ALL=C
sed -e 's/#.*//' -e '/^ *$/d' "$1" | while read -r pattern; do
  rm -r $pattern
done
