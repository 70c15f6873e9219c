#!/bin/bash
# Process 1 of a node: mounts, modules, network, programs. The kernel's command line sets NODE, ADDRESS, GATEWAY, ROUTES
# and PROGRAMS.
export PATH=/share/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /dev/mqueue
mount -t devpts devpts /dev/pts
for folder in /dev/shm /run /tmp; do mount -t tmpfs tmpfs $folder; done
mount -t cgroup2 cgroup /sys/fs/cgroup
mount --make-rshared /
mkdir -p /var/lib/containerd
[ ! -e /dev/ubdb ] || mount /dev/ubdb /var/lib/containerd
hostname "$NODE"
echo "127.0.0.1 localhost $NODE" >/etc/hosts
: >/etc/resolv.conf
modprobe --all overlay br_netfilter veth nfs nfsv4 loop nbd dummy ip_vs ip_vs_rr nf_conntrack_netlink nf_nat ip_set sch_netem
ip link set lo up
ip address add "$ADDRESS/24" dev vec0
ip link set vec0 up
for route in ${ROUTES//,/ }; do ip route add "${route%=*}" via "${route#*=}"; done  # the pods of the other nodes
ip route add default via "$GATEWAY"
sysctl -qw net.ipv4.ip_forward=1 net.ipv4.vs.conntrack=1
# A reply that takes another way than its request, as between a Service's client and a pod of one node, is no spoofed packet.
for where in all vec0; do
    sysctl -qw net.ipv4.conf.$where.rp_filter=0 net.ipv4.conf.$where.send_redirects=0 net.ipv4.conf.$where.accept_redirects=0
done
# cAdvisor ends the kubelet where /proc/cpuinfo has no clock rate.
(sed '/^$/d' /proc/cpuinfo; printf 'cpu MHz\t\t: 2000.000\n') >/run/cpuinfo
mount --bind /run/cpuinfo /proc/cpuinfo
ulimit -n 1048576
# A shell for each connection (machine.py). Without -t, socat ends half a second after its client has sent everything.
socat -t86400 TCP-LISTEN:2222,bind="$ADDRESS",fork,reuseaddr EXEC:/bin/bash,stderr,setsid &
. /share/guest/programs.sh
for program in ${PROGRAMS//,/ }; do start "$program"; done
while :; do wait -n || sleep 5; done  # an orphan is a child of process 1
