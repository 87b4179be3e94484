# Run in the emulated host by its bash. The probe is this bench's own program, on the input disk.
probe=/lab/kernel-tests/bench-machine-time
folder=/run/bench
# The lab's own guest, idle as it is, has ticks and housekeeping: work of a few ms, now and then, on some core.
for monitor in $(pidof qemu-system-x86_64); do kill -STOP "$monitor"; done
# So has the kernel's thread that puts pages together to large ones: 2 ms at a time, when it finds some.
echo 86400000 > /sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs
$probe probe loop ROUNDS RUNS
$probe probe loops ROUNDS RUNS
$probe probe wake BYTES RUNS
$probe probe wakes BYTES RUNS

# A guest of two cores, with the lab's own initial root and the probe as its only work.
rm -rf $folder
mkdir -p $folder/root/usr/lib/x86_64-linux-gnu
cp $probe $folder/root/probe
cp /usr/lib/x86_64-linux-gnu/libgcc_s.so.1 /usr/lib/x86_64-linux-gnu/libc.so.6 $folder/root/usr/lib/x86_64-linux-gnu/
cat > $folder/root/init <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
sleep 3
/probe probe loop ROUNDS RUNS | sed 's/^/L2/'
/probe probe loops ROUNDS RUNS | sed 's/^/L2/'
echo L2END
reboot -f
INIT
chmod 755 $folder/root/init
(cd $folder/root && find . | busybox cpio -o -H newc 2> /dev/null) > $folder/extra.cpio
cat /run/ostler-lab/guest.cpio $folder/extra.cpio > $folder/initrd
timeout 300 taskset -c 1,2 qemu-system-x86_64 -M microvm,rtc=on -accel kvm -cpu host -smp 2 -m 256M -nodefaults -display none -no-reboot \
	-kernel KERNEL -initrd $folder/initrd -serial file:$folder/serial.log \
	-append "COMMAND_LINE" < /dev/null
tr -d '\r' < $folder/serial.log
