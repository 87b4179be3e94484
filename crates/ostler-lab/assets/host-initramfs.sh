#!/bin/busybox sh
# First program of the emulated host: finds the root disk (vda, a snapshot that forgets what is written) and the disk with
# this run's input (vdb, read-only), then hands over to the lab's own init. What it needs to find them is loaded here;
# everything else is in the root.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for m in $(cat /m/order); do insmod "/m/$m.ko" || echo "LAB_FATAL insmod $m"; done
# Probing is asynchronous: the disks appear a moment after their driver.
i=0
while [ ! -b /dev/vdb ] && [ $i -lt 500 ]; do usleep 20000; i=$((i + 1)); done
mount -t ext4 -o noatime /dev/vda /mnt || echo "LAB_FATAL cannot mount the root disk"
mkdir -p /mnt/lab
mount -t ext4 -o ro /dev/vdb /mnt/lab || echo "LAB_FATAL cannot mount the input disk"
mount --move /dev /mnt/dev
umount /proc
exec switch_root /mnt /lab/bin/ostler-lab-inner init
