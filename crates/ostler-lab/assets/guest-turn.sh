#!/bin/busybox sh
# What the guest's own work comes to: `turn WORKLOAD` says it. `turn WORKLOAD FREEZER` is a turn: it has the work go on for as long as
# its input is open, and answers each line on it with what has been done by then.
work_done() {
	case $1 in
	# 8 sectors are a block of 4 KiB. The kernel counts them as they are completed.
	disk-*) awk '{ print int(($3 + $7) / 8) }' /sys/block/vda/stat ;;
	# Before its first round, a loop has no file.
	*) cat /tmp/work.* 2> /dev/null | awk '{ s += $1 } END { print s + 0 }' ;;
	esac
}

[ -n "$2" ] || { work_done "$1"; exit; }
echo 0 > "$2"
while read -r _; do work_done "$1"; done
echo 1 > "$2"
