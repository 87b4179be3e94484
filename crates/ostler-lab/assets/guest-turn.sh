#!/bin/busybox sh
# What the work that nobody asks for comes to, as a function, for who sources this. Run as `turn WORKLOAD FREEZER`, it is a turn: it has
# the work go on for as long as its input is open, and answers each line on it with what has been done by then.

# Sets `work`, and `at` to when that was by the clock of this guest. It starts no program, as everything that's started takes time from what is measured.
work_done() {
	work=0
	case $1 in
	disk-*)
		# 8 sectors are a block of 4 KiB. The kernel counts them as they are completed: the third field those read, the seventh those written.
		read -r _ _ sectors_read _ _ _ sectors_written _ < /sys/block/vda/stat
		work=$(((sectors_read + sectors_written) / 8))
		;;
	*)
		# Before its first round, a loop has no file.
		for file in /tmp/work.*; do
			[ -e "$file" ] && read -r rounds < "$file" && work=$((work + rounds))
		done
		;;
	esac
	read -r at _ < /proc/uptime
}

[ $# = 2 ] || return 0
echo 0 > "$2"
while read -r _; do
	work_done "$1"
	echo "$work $at"
done
echo 1 > "$2"
