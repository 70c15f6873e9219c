package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The unit of /proc/<pid>/stat, whatever the kernel's own tick is: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
const ticksPerSecond = 100

// result is the one line. Times are in milliseconds; CPU is that of the server, in microseconds per request; load_cpu is
// the share of a core that the load itself took: near 1 it is the load that is measured; others the share of the server's
// core that neither the server took nor was idle: the more, the less it says.
type result struct {
	Requests  int            `json:"requests"`
	Failed    map[string]int `json:"failed"`
	Retried   int            `json:"retried"`
	Late      int            `json:"late"`
	Seconds   float64        `json:"seconds"`
	PerSecond float64        `json:"per_second"`
	P50       float64        `json:"p50"`
	P90       float64        `json:"p90"`
	P99       float64        `json:"p99"`
	Max       float64        `json:"max"`
	CPU       float64        `json:"cpu"`
	LoadCPU   float64        `json:"load_cpu"`
	Others    float64        `json:"others"`
}

// usage is how much CPU time was spent.
type usage struct{ server, load, core time.Duration }

func used(chosen options) usage {
	return usage{cpuOf(chosen.processes), cpuOf("self"), busyOn(chosen.core)}
}

func summary(callers []*caller, chosen options, before, after usage) *result {
	found := &result{Failed: map[string]int{}, Seconds: chosen.seconds.Seconds()}
	var took []time.Duration
	for _, one := range callers {
		took = append(took, one.took...)
		found.Retried += one.retried
		for kind, count := range one.failed {
			found.Failed[kind] += count
		}
	}
	slices.Sort(took)
	for _, one := range took {
		if one > chosen.late {
			found.Late++
		}
	}
	found.Requests = len(took)
	found.PerSecond = float64(len(took)) / found.Seconds
	server := after.server - before.server
	found.LoadCPU = (after.load - before.load).Seconds() / found.Seconds
	if chosen.core >= 0 {
		found.Others = (after.core - before.core - server).Seconds() / found.Seconds
	}
	if len(took) > 0 {
		found.P50, found.P90 = at(took, 0.5), at(took, 0.9)
		found.P99, found.Max = at(took, 0.99), at(took, 1)
		found.CPU = float64(server.Microseconds()) / float64(len(took))
	}
	return found
}

// at returns a quantile of sorted times, by nearest rank: a time that was measured, not one in between.
func at(sorted []time.Duration, quantile float64) float64 {
	rank := int(quantile*float64(len(sorted))+0.999999) - 1
	return sorted[max(rank, 0)].Seconds() * 1000
}

// cpuOf adds up the CPU time of processes, that of their ended threads as well.
func cpuOf(processes string) time.Duration {
	ticks := 0
	for pid := range strings.SplitSeq(processes, ",") {
		if pid == "" {
			continue
		}
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			fmt.Fprintln(os.Stderr, "load:", err)
			continue
		}
		// The name of the program, in brackets, may hold anything; utime and stime are the 14th and 15th field.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		ticks += sum(fields[11:13])
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond
}

// busyOn returns for how long a core was not idle.
func busyOn(core int) time.Duration {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
	}
	for line := range strings.Lines(string(stat)) {
		// user, nice, system, idle, iowait, irq, softirq, steal: https://man7.org/linux/man-pages/man5/proc_stat.5.html
		fields := strings.Fields(line)
		if len(fields) > 8 && fields[0] == fmt.Sprintf("cpu%d", core) {
			return time.Duration(sum(fields[1:4])+sum(fields[6:9])) * time.Second / ticksPerSecond
		}
	}
	return 0
}

func sum(fields []string) int {
	total := 0
	for _, field := range fields {
		number, _ := strconv.Atoi(field)
		total += number
	}
	return total
}
