# The programs of a node: `start NAME` and `kill_program NAME`. Their configuration and logs are in /share/$NODE.
export NODE=${NODE:-$(hostname)} PATH=/share/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ulimit -n 1048576
arguments() {
    case $1 in
    containerd) echo --config=/share/$NODE/containerd.toml ;;
    csi) echo $NODE $(ip -4 -o address show dev vec0 | sed 's/.*inet \([0-9.]*\).*/\1/') ;;
    kubelet) cat /share/$NODE/kubelet.options ;;
    kube-proxy) echo --config=/share/$NODE/proxy.json ;;
    esac
}
# kube-proxy exits when its node gets its first address, so each program is started again when it exits.
start() {
    setsid /bin/bash -c 'while :; do "$@"; sleep 1; done' "keep-$1" "$1" $(arguments "$1") >>/share/$NODE/$1.log 2>&1 </dev/null &
    [ "$1" != containerd ] || until ctr version >/dev/null 2>&1; do sleep 0.2; done
}
# By SIGKILL, together with the loop that would start it again.
kill_program() {
    pkill -KILL -f "^/bin/bash -c while .* keep-$1 "
    pkill -KILL -x "$1"
    while pgrep -x "$1" >/dev/null; do sleep 0.1; done
}
