#!/usr/bin/perl
# How soon does a steward that acts notice what happens to guests of a real libvirt? Runs in the emulated host, whose image
# needs libvirt in it; docs/libvirt.md tells how.
#
#   watch.pl STEWARD libvirt|qmp|both REPETITIONS [start vcpu iothread vnic suspend plain held]
#
# What happens is timed by whoever makes it happen: libvirt's events, the threads in libvirt's cgroups, QEMU's events. When
# it was noticed, and acted on, is the end of the period that shows it, by the steward's own lines of JSON. Both are of the
# host's wall clock. Below zero, the steward saw it itself before libvirt told of it.
$| = 1;
use strict;
use warnings;
use IO::Socket::UNIX;
use POSIX qw(WNOHANG);
use Time::HiRes qw(time sleep);
use Time::Local qw(timegm);

my ($steward, $found_by, $times, @what) = @ARGV;
die "usage: watch.pl STEWARD libvirt|qmp|both REPETITIONS [WHAT...]\n" unless $times;
@what = qw(start vcpu iothread vnic suspend plain) unless @what;
my ($dir, $sockets) = ("/run/watch-$$", '/run/watch-qmp');
my $virsh = 'virsh -q';
my (%delays, %lost);

sub run { system("{ $_[0]; } >> $dir/virsh.log 2>&1"); return $? == 0 }
sub text { open(my $file, '<', $_[0]) or return ''; local $/; my $text = <$file>; return $text // '' }
sub put { open(my $file, '>', $_[0]) or die "$_[0]: $!"; print $file $_[1]; close $file }

sub background {
    my ($command) = @_;
    my $pid = fork // die "fork: $!";
    return $pid if $pid;
    exec '/bin/sh', '-c', "exec $command" or die "exec: $!";
}

sub until_true {
    my ($what, $true, $seconds, $pause) = @_;
    my $deadline = time + ($seconds // 60);
    until ($true->()) {
        if (time > $deadline) { warn "not in time: $what\n"; return 0 }
        sleep($pause // 0.001);
    }
    return 1;
}

# A domain that runs firmware alone, or the lab's own guest, which spins.
sub define {
    my ($name, $kernel) = @_;
    my $lab = '/usr/lib/ostler-lab/vmlinuz';
    my $boot = $kernel ? "<kernel>$lab</kernel><initrd>/run/ostler-lab/guest.cpio</initrd>"
        . "<cmdline>console=ttyS0 quiet lab.name=$name lab.workload=spin lab.memory_mb=160</cmdline>" : '';
    my $socket = "unix:$sockets/$name.qmp,server=on,wait=off";
    my $qmp = $found_by eq 'libvirt' ? ''
        : "<qemu:commandline><qemu:arg value='-qmp'/><qemu:arg value='$socket'/></qemu:commandline>";
    my $vcpus = 1 + ($times > 20 ? $times : 20);
    put("$dir/$name.xml", <<"XML");
<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>$name</name><uuid>4dea22b3-1d52-d8f3-2516-782e98ab3fa0</uuid>
  <metadata><ostler:labels xmlns:ostler="urn:ostler:labels"><label key="tier" value="web"/></ostler:labels></metadata>
  <memory unit='MiB'>160</memory><vcpu current='1'>$vcpus</vcpu><iothreads>1</iothreads>
  <os><type arch='x86_64' machine='pc'>hvm</type>$boot</os>
  <features><acpi/></features><cpu mode='host-passthrough'/>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator><controller type='usb' model='none'/>
    <interface type='bridge'><source bridge='br0'/><model type='virtio'/><driver name='vhost'/></interface>
    <serial type='file'><source path='$dir/$name.log'/></serial><memballoon model='none'/>
  </devices>$qmp
</domain>
XML
    run("$virsh define $dir/$name.xml") or die text("$dir/virsh.log");
}

# What of a domain is in libvirt's cgroups.
sub cgroup { my ($path) = glob("/sys/fs/cgroup/machine/qemu-*-web.libvirt-qemu"); return $path // '/nowhere' }
sub has_threads { return text(cgroup() . "/$_[0]/cgroup.threads") ne '' }

sub libvirtd {
    return if run("$virsh list");
    open(my $conf, '>>', '/etc/libvirt/qemu.conf') or die $!;
    print $conf qq(user = "root"\ngroup = "root"\nsecurity_driver = "none"\nnamespaces = []\n);
    close $conf;
    run('mkdir -p /run/lock; virtlogd -d; libvirtd -d');
    until_true('libvirtd', sub { run("$virsh list") }) or die text("$dir/virsh.log");
}

my ($steward_pid, $lines, @periods);
my $partial = q();

# At most one of each key's sections.
sub start_steward {
    my ($class, $policy, $managed) = @_;
    my $qmp = $found_by eq 'libvirt' ? '' : qq("$sockets/*.qmp");
    my $libvirt = $found_by eq 'qmp' ? '' : qq(libvirt = "qemu:///system"\n);
    my $rule = $found_by eq 'qmp' ? 'name = "web"' : 'metadata = { tier = "web" }';
    my $objective = $class eq 'latency-critical' ? qq(slo = "50ms"\n) : '';
    put("$dir/ostler.toml", <<"TOML");
[cores]
managed = "$managed"
[partition]
$policy
[[guest]]
$rule
class = "$class"
$objective
[[guest]]
name = "plain"
class = "latency-critical"
slo = "50ms"
[discovery]
qmp = [$qmp]
$libvirt
[agent]
enabled = false
[api]
socket = "$dir/ostler.sock"
[record]
enabled = false
[journal]
path = "$dir/journal"
TOML
    $steward_pid = background("$steward run --act --json --config $dir/ostler.toml > $dir/lines 2>> $dir/ostler.log");
    until_true('the steward', sub { -s "$dir/lines" }) or die text("$dir/ostler.log");
    open($lines, '<', "$dir/lines") or die $!;
    (@periods, $partial) = ();
}

sub end_steward {
    my $began = time;
    kill 'TERM', $steward_pid;
    waitpid $steward_pid, 0;
    printf "the steward ended with %d after %.0f ms\n", $? >> 8, 1000 * (time - $began);
}

# The first period since then that is so, waited for.
sub period {
    my ($what, $since, $is) = @_;
    my ($at, $seen) = (0, undef);
    until_true($what, sub {
        seek $lines, 0, 1; # What was its end may have grown.
        while (defined(my $line = <$lines>)) {
            $partial .= $line;
            next unless $partial =~ /\n\z/;
            my ($wall) = $partial =~ /^\{"wall":(\d+)/;
            my ($written) = $partial =~ /"written":(\d+)/;
            my %period = (wall => $wall / 1e9, written => $written, line => $partial);
            $period{$1} = {vcpus => $2, busy => $3} while $partial =~ /"name":"(web|plain)".*?"vcpus":(\d+),"vcpu_busy":([-\d.e]+)/g;
            push @periods, \%period;
            $partial = '';
        }
        for (; $at < @periods; $at++) {
            next if $periods[$at]{wall} < $since;
            return 1 if defined($seen = $is->($periods[$at]) ? $periods[$at] : undef);
        }
        return 0;
    }, 30, 0.02);
    return $seen;
}

sub note {
    my ($what, $when, $period) = @_;
    if ($period) { push @{$delays{$what}}, [$when, $period->{wall}] } else { $lost{$what}++ }
}

# Something whose thread shows in a cgroup of libvirt's, which the steward then gives some of the cores that it manages, and none else.
sub plug {
    my ($what, $command, $cgroup) = @_;
    sleep 0.3 + rand 0.1; # Anywhere in a period.
    my $child = background("$virsh $command >> $dir/virsh.log 2>&1");
    until_true($what, sub { has_threads($cgroup) }) or return $lost{$what}++;
    my $then = time;
    my $given = until_true("$what: its cores", sub { text(cgroup() . "/$cgroup/cpuset.cpus") =~ /^[0-2](-[0-2])?$/ });
    note("$what: its cores given", $then, $given && {wall => time});
    waitpid $child, 0;
    $lost{"$what: refused"}++ if $?;
}

my $machine = "$dir/plain.qmp";

# A guest that nobody but us manages, put together first and then made to run.
sub plain {
    my $cgroup = '/sys/fs/cgroup/machine/watch-plain';
    mkdir $cgroup;
    unlink $machine, "$sockets/plain.qmp";
    my $began = time;
    my $pid = background("sh -c 'echo 0 > $cgroup/cgroup.procs; exec qemu-system-x86_64 -M microvm -accel kvm -cpu host -m 64M"
        . " -nodefaults -display none -S -name plain,debug-threads=on -qmp unix:$machine,server=on,wait=off"
        . " -qmp unix:$sockets/plain.qmp,server=on,wait=off' > $dir/plain.log 2>&1");
    my $socket;
    until_true('its monitor', sub { $socket = IO::Socket::UNIX->new(Type => SOCK_STREAM(), Peer => $machine) }) or return;
    my $answer = sub { my ($like) = @_; while (<$socket>) { return $_ if /$like/ } return '' };
    $answer->('QMP');
    print $socket qq({"execute": "qmp_capabilities"}\n);
    $answer->('return');
    # Five whole periods in which it answers, and is no guest yet.
    my ($since, $count) = (time, 0);
    period('five periods', $since, sub { $lost{'plain: told of before it ran'}++ if $_[0]{plain}; return ++$count > 5 });
    print $socket qq({"execute": "cont"}\n);
    my $resumed = $answer->('"RESUME"');
    my ($seconds, $micros) = $resumed =~ /"seconds": (\d+), "microseconds": (\d+)/;
    note('plain QEMU: adopted', $seconds + $micros / 1e6, period('plain', $since, sub { $_[0]{plain} }));
    sleep rand 0.1;
    kill 'KILL', $pid;
    waitpid $pid, 0;
    my $gone = time;
    note('plain QEMU: gone', $gone, period('plain gone', $gone, sub { !$_[0]{plain} }));
}

my %watch = (
    start => sub {
        for (1 .. $times) {
            my $since = time;
            run("$virsh start web") or $lost{'start: refused'}++;
            note('domain: adopted', "Resumed|Started $since", period('start', $since, sub { $_[0]{web} && $_[0]{web}{vcpus} > 0 }));
            sleep 0.2 + rand 0.1;
            $since = time;
            run("$virsh destroy web");
            note('domain: gone', "Stopped $since", period('destroy', $since, sub { !$_[0]{web} }));
        }
    },
    vcpu => sub {
        for my $n (1 .. $times) {
            my $vcpus = $n + 1;
            plug('vCPU', "setvcpus web $vcpus --live", "vcpu$n");
        }
    },
    iothread => sub {
        for my $n (2 .. $times + 1) {
            plug('io thread', "iothreadadd web $n --live", "iothread$n");
        }
    },
    vnic => sub {
        put("$dir/vnic.xml", "<interface type='bridge'><source bridge='br0'/><model type='virtio'/><driver name='vhost'/></interface>");
        for (1 .. $times) {
            sleep 0.3 + rand 0.1;
            my $since = time;
            run("$virsh attach-device web $dir/vnic.xml --live") or $lost{'vNIC: refused'}++, next;
            my $placed = period('vNIC', $since, sub { $_[0]{written} > 0 });
            note('vNIC: its worker placed', "device-added $since", $placed);
        }
        my $workers = () = glob(cgroup() . '/ostler.vhost/*/cgroup.threads');
        printf "%d vhost workers have cgroups, for %d vNICs\n", $workers, $times + 1;
    },
    suspend => sub {
        my $spins = sub { $_[0]{web} && $_[0]{web}{busy} > 0.95 };
        my $count = 0;
        until_true('a guest that spins', sub { period('spin', time, $spins) ? ++$count > 3 : ($count = 0) }, 120);
        for (1 .. $times) {
            sleep 0.5 + rand 0.1;
            my $since = time;
            run("$virsh suspend web");
            # A period in which it spun for a part is the first that shows it.
            note('suspended: seen', "Suspended $since", period('suspend', $since, sub { $_[0]{web} && $_[0]{web}{busy} < 0.9 }));
            my $rest = period('rest', $since, sub { $_[0]{web} && $_[0]{web}{busy} == 0 });
            sleep 0.3 + rand 0.1;
            $since = time;
            run("$virsh resume web");
            note('resumed: seen', "Resumed $since", period('resume', $since, sub { $_[0]{web} && $_[0]{web}{busy} > 0 }));
        }
        # A steward that starts beside a suspended domain.
        run("$virsh suspend web");
        end_steward();
        start_steward('latency-critical', "policy = \"static\"\nvcpu = 2\nnq = 1", '0-2');
        printf "a steward that starts %s the suspended domain\n", period('it', 0, sub { $_[0]{web} }) ? 'adopts' : 'lacks';
        run("$virsh resume web");
    },
    plain => sub { plain() for 1 .. $times },
    # libvirtd stands still while it puts a domain together that the policy would suspend: it must start all the same.
    held => sub {
        my ($libvirtd) = split ' ', `pidof libvirtd`;
        my $started = 0;
        for (1 .. $times) {
            unlink "$sockets/web.qmp";
            my $child = background("timeout 20 $virsh start web >> $dir/virsh.log 2>&1");
            until_true('its monitor', sub { -S "$sockets/web.qmp" });
            kill 'STOP', $libvirtd;
            sleep 2;
            my $frozen = text(cgroup() . '/cgroup.freeze') + 0;
            kill 'CONT', $libvirtd;
            waitpid $child, 0;
            $started++ unless $?;
            $lost{'held: frozen before it ran'}++ if $frozen;
            kill 'KILL', text('/run/libvirt/qemu/web.pid') + 0; # A frozen one ends by nothing else.
            until_true('its end', sub { !-e '/run/libvirt/qemu/web.pid' });
            until_true('its end', sub { `$virsh domstate web 2>/dev/null` =~ /shut off/ });
        }
        print "held: $started of $times domains started\n";
    },
);

# What was noticed how soon, of what has been watched since the last time.
sub summary {
    # libvirt's events, oldest first: when and what.
    my @events;
    for (split /\n/, text("$dir/events")) {
        my ($y, $m, $d, $h, $min, $s, $ms, $event) = /^(\d+)-(\d+)-(\d+) (\d+):(\d+):(\d+)(\.\d+)\+0000: (.*)/ or next;
        push @events, [timegm($s, $min, $h, $d, $m - 1, $y) + $ms, $event];
    }
    printf "%-28s %4s %8s %8s %8s   in ms, found by %s\n", 'what', 'n', 'least', 'median', 'most', $found_by;
    for my $what (sort keys %delays) {
        my @all;
        for (@{$delays{$what}}) {
            my ($when, $noticed) = @$_;
            if (my ($like, $since) = $when =~ /^(\D+) ([\d.]+)$/) {
                my ($event) = grep { $_->[0] >= $since - 0.001 && $_->[1] =~ /$like/ } @events;
                if (!$event) { $lost{"$what: no event"}++; next }
                $when = $event->[0];
            }
            push @all, 1000 * ($noticed - $when);
        }
        @all = sort { $a <=> $b } @all or next;
        printf "%-28s %4d %8.0f %8.0f %8.0f\n", $what, scalar @all, $all[0], $all[@all / 2], $all[-1];
    }
    %delays = ();
}

mkdir $_ or -d or die "$_: $!" for $dir, $sockets;
libvirtd();
define('web', 0);
my $events = background("stdbuf -oL $virsh event --all --timestamp --loop > $dir/events 2>&1");
for my $what (@what) {
    my $begun = $watch{$what} or die "$what is not known here\n";
    my @policy = $what eq 'held' ? ('best-effort', 'policy = "resource"', '0-1')
        : ('latency-critical', "policy = \"static\"\nvcpu = 2\nnq = 1", '0-2');
    define('web', $what eq 'suspend');
    start_steward(@policy);
    my $since = time;
    run("$virsh start web") or die text("$dir/virsh.log") unless $what =~ /start|plain|held/;
    # Until nothing is left to be written.
    my $quiet = 0;
    period('rest', $since, sub { ($quiet = $_[0]{written} ? 0 : $quiet + 1) > 10 });
    $begun->();
    run("$virsh destroy web") unless $what =~ /start|plain|held/;
    end_steward();
    summary();
}
kill 'INT', $events;
waitpid $events, 0;
print "$_: $lost{$_}\n" for sort keys %lost;
(my $log = text("$dir/ostler.log")) =~ s/\e\[[0-9;]*m//g;
print grep { !/plan changes/ } map { "$_\n" } grep { /WARN|ERROR/ && !/closing a QMP/ } split /\n/, $log;
exit(%lost ? 1 : 0);
