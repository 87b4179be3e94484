#!/bin/busybox sh
# First program of a guest. Its workload runs in a cgroup of its own, so that the agent (if there is one) can confine it
# to some of the vCPUs; everything the lab wants to know of it is said on the serial line, in lines that begin with LAB_.
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin:/usr/sbin HOME=/
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for m in $(cat /m/order); do insmod "/m/$m.ko" || echo "LAB_FATAL insmod $m"; done
for word in $(cat /proc/cmdline); do
	case $word in
	lab.name=*) name=${word#*=} ;;
	lab.ip=*) ip=${word#*=} ;;
	lab.workload=*) workload=${word#*=} ;;
	lab.memory_mb=*) memory_mb=${word#*=} ;;
	lab.rests) rests=1 ;;
	esac
done
hostname "$name"
ip link set lo up
if [ -n "$ip" ]; then
	ip addr add "$ip" dev eth0
	ip link set eth0 up
	# Every queue pair in use from the start; the agent narrows them when it is told to.
	ethtool -L eth0 combined "$(ls -d /sys/class/net/eth0/queues/rx-* | wc -l)" 2>/dev/null
fi
echo "+cpuset +cpu" > /sys/fs/cgroup/cgroup.subtree_control
. /turn
# What serves requests is in app; work that nobody asks for is below it, so that it can be frozen by itself.
app=/sys/fs/cgroup/app
mkdir -p $app/work

in_app() {
	(echo 0 > $app/cgroup.procs; exec "$@") &
}
in_work() {
	(echo 0 > $app/work/cgroup.procs; exec "$@") &
}
# One loop per vCPU; each counts its rounds, and the sum is said once a second, with the time. A count is written over the one before: emptied first,
# the file would now and then be read empty.
on_every_vcpu() {
	i=0
	while [ $i -lt "$(nproc)" ]; do
		in_work sh -c "n=0; while :; do $1; n=\$((n + 1)); echo \$n 1<> /tmp/work.$i; done"
		i=$((i + 1))
	done
}
serve_files() {
	# 2,000 files of 1 KB; the content doesn't matter, that each is another file does.
	mkdir -p /tmp/www /tmp/nginx
	kb=$(head -c 1020 /dev/zero | tr '\0' x)
	i=0
	while [ $i -lt 2000 ]; do echo "$i $kb" > "/tmp/www/$i"; i=$((i + 1)); done
	in_app nginx -c /etc/nginx.conf
	listening 80
}
listening() {
	i=0
	while ! netstat -ltn | grep -q ":$1 "; do
		i=$((i + 1))
		[ $i -gt 3000 ] && { echo "LAB_FATAL nothing listens on port $1"; return; }
		usleep 20000
	done
}

[ -z "$rests" ] || echo 1 > $app/work/cgroup.freeze
case $workload in
memcached)
	in_app memcached -u nobody -m $((memory_mb / 4)) -t "$(nproc)" -c 1024 -l 0.0.0.0
	listening 11211
	;;
redis)
	# Its housekeeping runs once a second instead of ten times: an idle one should take next to nothing.
	in_app redis-server --bind 0.0.0.0 --protected-mode no --save '' --hz 1 --maxmemory $((memory_mb / 4))mb
	listening 6379
	;;
nginx)
	serve_files
	;;
echo)
	# A process for each connection, which blocks in read and writes what it has read.
	in_app nc -ll -p 7 -e cat
	listening 7
	;;
mixed)
	serve_files
	# Short enough for a few rounds in each second.
	head -c 65536 /bin/busybox > /tmp/text
	on_every_vcpu 'gzip -c /tmp/text > /dev/null'
	;;
disk-read)
	in_work sh -c 'while dd if=/dev/vda of=/dev/null bs=4k iflag=direct status=none; do :; done; echo "LAB_FATAL cannot read the disk"'
	;;
disk-write)
	blocks=$(($(cat /sys/block/vda/size) / 8))
	in_work sh -c "while dd if=/dev/zero of=/dev/vda bs=4k count=$blocks oflag=direct status=none; do :; done; echo 'LAB_FATAL cannot write the disk'"
	;;
# Some forty rounds a second: what is done in a few seconds is known to a hundredth, and to count takes next to nothing.
spin) on_every_vcpu 'k=0; while [ $k -lt 250 ]; do k=$((k + 1)); done' ;;
ping | idle) ;;
*) echo "LAB_FATAL no workload named '$workload'" ;;
esac
if [ -n "$rests" ]; then
	# It works while the lab is connected here: crates/ostler-lab/src/inner/turn.rs.
	nc -ll -p 9 -e /turn "$workload" $app/work/cgroup.freeze &
	listening 9
fi

# The vCPUs that the workload may use, each time that they change: what the agent was asked for, told by someone else.
vcpus=
say_vcpus() {
	# No program is started for it: a guest that does nothing is to take next to nothing.
	read -r now < $app/cpuset.cpus.effective
	[ "$now" = "$vcpus" ] || echo "LAB_VCPUS $now"
	vcpus=$now
}
say_vcpus

# The agent stays outside the app cgroup: a narrow cpuset of the application must not starve it.
# For fault tests alone: agents that misbehave, each on a port of its own.
if [ -x /ostler-guest-evil ]; then
	port=1078
	for kind in silent slow random lying; do
		/ostler-guest-evil $kind $port > /dev/console 2>&1 &
		port=$((port + 1))
	done
fi
[ -x /ostler-guest ] && { /ostler-guest --cgroup app > /dev/console 2>&1 & }

echo "LAB_READY $(cut -d' ' -f1 /proc/uptime)"
# Nobody ever writes here: waiting for someone who does is to sleep without starting a program for it.
mkfifo /tmp/nothing
exec 3<> /tmp/nothing
while :; do
	read -r -t 1 -u 3 _
	say_vcpus
	case $workload in
	mixed | disk-* | spin)
		work_done "$workload"
		echo "LAB_WORK $work $at"
		;;
	esac
done
