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

// The unit of /proc/<pid>/stat, independent of the kernel's tick: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
const ticksPerSecond = 100

// result is the printed line. Times are in milliseconds. CPU is the server's, in microseconds per request. LoadCPU is the
// share of a core that the load used: near 1, the load limits the result. Others is the share of the server's core that
// other processes used: the higher, the less reliable the result.
type result struct {
	Requests  int            `json:"requests"`
	Failed    map[string]int `json:"failed"`
	Late      int            `json:"late"`
	Seconds   float64        `json:"seconds"`
	PerSecond float64        `json:"per_second"`
	P50       float64        `json:"p50"`
	P99       float64        `json:"p99"`
	Max       float64        `json:"max"`
	CPU       float64        `json:"cpu"`
	LoadCPU   float64        `json:"load_cpu"`
	Others    float64        `json:"others"`
}

// usage is the CPU time used so far.
type usage struct{ server, load, core time.Duration }

func used(chosen options) usage {
	return usage{cpuOf(chosen.processes), cpuOf("self"), busyOn(chosen.core)}
}

func summary(callers []*caller, chosen options, before, after usage) *result {
	found := &result{Failed: map[string]int{}, Seconds: chosen.seconds.Seconds()}
	var took []time.Duration
	for _, one := range callers {
		took = append(took, one.took...)
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
		found.P50, found.P99, found.Max = at(took, 0.5), at(took, 0.99), at(took, 1)
		found.CPU = float64(server.Microseconds()) / float64(len(took))
	}
	return found
}

// at returns a quantile of sorted times by nearest rank, so always a measured time, never an interpolated one.
func at(sorted []time.Duration, quantile float64) float64 {
	rank := int(quantile*float64(len(sorted))+0.999999) - 1
	return sorted[max(rank, 0)].Seconds() * 1000
}

// cpuOf returns the total CPU time of processes, including their exited threads.
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
		// The program's name, in parentheses, may contain any character. utime and stime are the 14th and 15th fields.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		ticks += sum(fields[11:13])
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond
}

// busyOn returns the time that a core was not idle.
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
