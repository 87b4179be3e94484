# Run in the emulated host by its bash. The probe is this bench's own program, on the input disk.
probe=/lab/kernel-tests/bench-machine
# Lines that follow each other in a large page do so in physical memory: no set of a cache gets more of them than others.
echo always > /sys/kernel/mm/transparent_hugepage/enabled
# The lab's own guest, idle as it is, has ticks and housekeeping: work of a few ms, now and then, on some core.
for monitor in $(pidof qemu-system-x86_64); do kill -STOP "$monitor"; done
# So has the kernel's thread that puts pages together to large ones: 2 ms at a time, when it finds some.
echo 86400000 > /sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs
# The lab's programs are kept off the cores under test; the probe is not to be.
echo $$ > /sys/fs/cgroup/cgroup.procs
chase() { taskset -c 0 numactl --membind "$2" $probe probe chase "$1" "$3" RUNS; }
chase L1 0 16
chase L2 0 256
chase L3 0 4096
chase LOCAL 0 65536
chase REMOTE 1 65536
chase POOL 2 65536
numactl --membind 2 $probe probe stream STREAM 65536 RUNS
taskset -c 0 $probe probe mix MIX 100000 1 RUNS
echo END
