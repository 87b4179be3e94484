# Run in the emulated host by its bash. The probe is this bench's own program, on the input disk.
set -e
probe=/lab/kernel-tests/bench-boost
# Whoever runs this may be confined to some cores.
echo $$ > /sys/fs/cgroup/cgroup.procs
monitor=$(pidof qemu-system-x86_64)
# The lab's own guest, idle as it is, has ticks and housekeeping: work of a few ms, now and then, on some core.
kill -STOP $monitor
$probe probe compare SIZE --on CORES
$probe probe hooks SIZE --on CORES
kill -CONT $monitor
$probe probe guest-hooks $monitor --on CORES ip netns exec client busybox ping -q -A -c PINGS GUEST
echo END
