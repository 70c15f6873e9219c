// Load generator: calls a webhook like the API server, and prints the result as one line of JSON.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

type options struct {
	url, review, ca string
	connections     int
	fresh           bool
	rate            float64
	warmUp, seconds time.Duration
	late            time.Duration
	processes       string
	core            int
}

func main() {
	var chosen options
	flag.StringVar(&chosen.url, "url", "", "https://ADDRESS/mutate?timeout=10s")
	flag.StringVar(&chosen.review, "review", "", "a file with an AdmissionReview; its uid is replaced in each request")
	flag.StringVar(&chosen.ca, "ca", "", "whom to trust")
	flag.IntVar(&chosen.connections, "connections", 8, "how many requests at once; the API server has 25 at most")
	flag.BoolVar(&chosen.fresh, "fresh", false, "a new connection for each request")
	flag.Float64Var(&chosen.rate, "rate", 0, "requests per second, whether they are answered or not; 0: one after the other")
	flag.DurationVar(&chosen.warmUp, "warm-up", 500*time.Millisecond, "not measured")
	flag.DurationVar(&chosen.seconds, "for", 3*time.Second, "measured")
	flag.DurationVar(&chosen.late, "late", 100*time.Millisecond, "from when on an answer counts as late")
	flag.StringVar(&chosen.processes, "cpu-of", "", "the pids of the server, with commas: whose CPU time to count")
	flag.IntVar(&chosen.core, "core", -1, "the number of the server's core: how much of it others took")
	flag.Parse()
	// The load has one core, and its garbage collection must not appear as tail latency of the server.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(800)
	found, err := run(chosen)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(found)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

// run starts one caller for each connection, and waits until the measured time is over.
func run(chosen options) (*result, error) {
	body, err := os.ReadFile(chosen.review)
	if err != nil {
		return nil, err
	}
	client, err := newClient(chosen)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	timing := schedule{begin: begin, from: begin.Add(chosen.warmUp), rate: chosen.rate}
	timing.to = timing.from.Add(chosen.seconds)
	callers := make([]*caller, chosen.connections)
	var done sync.WaitGroup
	for number := range callers {
		if callers[number], err = newCaller(client, chosen.url, body, number); err != nil {
			return nil, err
		}
		done.Go(func() { callers[number].run(&timing) })
	}
	time.Sleep(time.Until(timing.from))
	before := used(chosen)
	time.Sleep(time.Until(timing.to))
	after := used(chosen)
	done.Wait()
	return summary(callers, chosen, before, after), nil
}

// schedule decides when requests are sent. Only requests that are due in the measured time count.
type schedule struct {
	begin, from, to time.Time
	rate            float64
	next            counter
}

// wait sleeps until the next request is due, and returns that time. In an open loop the request may be overdue. Its
// delay then counts as latency, as intended.
func (s *schedule) wait() time.Time {
	if s.rate <= 0 {
		return time.Now()
	}
	due := s.begin.Add(time.Duration(float64(s.next.take()) / s.rate * float64(time.Second)))
	time.Sleep(time.Until(due))
	return due
}
