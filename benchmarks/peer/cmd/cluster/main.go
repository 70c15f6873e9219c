// A fake API server for this project's webhook: serves lists and watches from one file, and accepts Events.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

var plurals = map[string]string{
	"CSINode":                "csinodes",
	"Namespace":              "namespaces",
	"Node":                   "nodes",
	"PersistentVolume":       "persistentvolumes",
	"PersistentVolumeClaim":  "persistentvolumeclaims",
	"Pod":                    "pods",
	"ShareManager":           "sharemanagers",
	"VirtualMachine":         "virtualmachines",
	"VirtualMachineInstance": "virtualmachineinstances",
}

// As measured on an API server of 1.36: a quiet watch gets a bookmark once a minute. Storing a pod takes 8 to 16 ms
// (docs/development/measurements.md), storing an Event somewhat less.
const (
	bookmarkEvery = time.Minute
	storing       = 5 * time.Millisecond
)

type cluster struct {
	items map[string][]json.RawMessage // by plural
	kinds map[string]string
}

func main() {
	snapshot := flag.String("snapshot", "", "the cluster: one List in JSON")
	folder := flag.String("tls-dir", "", "the folder with tls.crt and tls.key")
	flag.Parse()
	known, err := read(*snapshot)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr().String())
	log.Fatal(http.ServeTLS(listener, known, *folder+"/tls.crt", *folder+"/tls.key"))
}

func read(file string) (*cluster, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	known := &cluster{items: map[string][]json.RawMessage{}, kinds: map[string]string{}}
	for kind, plural := range plurals {
		known.items[plural], known.kinds[plural] = []json.RawMessage{}, kind
	}
	for _, item := range list.Items {
		var of struct {
			Kind string `json:"kind"`
		}
		if err := json.Unmarshal(item, &of); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		known.items[plurals[of.Kind]] = append(known.items[plurals[of.Kind]], item)
	}
	return known, nil
}

func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	plural := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	_, listed := c.items[plural]
	switch {
	case r.Method == http.MethodPost || r.Method == http.MethodPatch:
		// An Event: respond with the same object, and store nothing.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		time.Sleep(storing)
		_, _ = w.Write(body)
	case !listed:
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"kind":"Status","status":"Failure","reason":"NotFound","code":404}`)
	case r.URL.Query().Get("watch") == "true":
		c.watch(w, r, plural)
	default:
		c.list(w, r, plural)
	}
}

func (c *cluster) list(w http.ResponseWriter, r *http.Request, plural string) {
	items := c.items[plural]
	start, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	end := len(items)
	if limit, err := strconv.Atoi(r.URL.Query().Get("limit")); err == nil {
		end = min(end, start+limit)
	}
	metadata := map[string]string{"resourceVersion": "1"}
	if end < len(items) {
		metadata["continue"] = strconv.Itoa(end)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "List", "metadata": metadata, "items": items[start:end]})
}

// watch sends only bookmarks, because nothing changes in this cluster.
func (c *cluster) watch(w http.ResponseWriter, r *http.Request, plural string) {
	seconds, err := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	if err != nil {
		seconds = 300
	}
	end, bookmarks := time.After(time.Duration(seconds)*time.Second), time.NewTicker(bookmarkEvery)
	defer bookmarks.Stop()
	flush := http.NewResponseController(w)
	_ = flush.Flush()
	for {
		select {
		case <-bookmarks.C:
			fmt.Fprintf(w, `{"type":"BOOKMARK","object":{"kind":%q,"metadata":{"resourceVersion":"1"}}}`+"\n", c.kinds[plural])
			_ = flush.Flush()
		case <-end:
			return
		case <-r.Context().Done():
			return
		}
	}
}
