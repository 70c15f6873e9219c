// A receiver of traces, for the API server's --tracing-config-file: prints each span as a line of JSON.
//
// It speaks the little of gRPC and OTLP that the API server's exporter needs, so that no other module is needed.
package main

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"

	"google.golang.org/protobuf/encoding/protowire"
)

// Times are in nanoseconds since the epoch.
type span struct {
	Trace  string            `json:"trace"`
	Name   string            `json:"name"`
	Start  uint64            `json:"start"`
	End    uint64            `json:"end"`
	Events map[string]uint64 `json:"events"`
}

func main() {
	address := flag.String("listen", "", "host:port; HTTP/1.1 and HTTP/2 without TLS")
	flag.Parse()
	routes := http.NewServeMux()
	routes.HandleFunc("GET /healthz", func(writer http.ResponseWriter, _ *http.Request) { fmt.Fprintln(writer, "ok") })
	routes.HandleFunc("POST /opentelemetry.proto.collector.trace.v1.TraceService/Export", export)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Addr: *address, Handler: routes, Protocols: protocols}
	log.Fatal(server.ListenAndServe())
}

// export answers one unary call of gRPC: a message has a byte for its compression and 4 bytes for its length before it.
func export(writer http.ResponseWriter, request *http.Request) {
	raw, err := io.ReadAll(request.Body)
	if err != nil || len(raw) < 5 || raw[0] != 0 || int(binary.BigEndian.Uint32(raw[1:])) != len(raw)-5 {
		log.Fatal("not one uncompressed message: ", err)
	}
	printSpans(raw[5:])
	writer.Header().Set("Content-Type", "application/grpc")
	writer.Header().Set("Trailer", "Grpc-Status")
	if _, err := writer.Write(make([]byte, 5)); err != nil { // an empty message
		log.Print(err)
	}
	writer.Header().Set("Grpc-Status", "0")
}

// The field numbers are those of opentelemetry/proto/collector/trace/v1/trace_service.proto and trace/v1/trace.proto.
func printSpans(request []byte) {
	encoder := json.NewEncoder(os.Stdout)
	for _, resource := range messages(request, 1) {
		for _, scope := range messages(resource, 2) {
			for _, raw := range messages(scope, 2) {
				if err := encoder.Encode(read(raw)); err != nil {
					log.Fatal(err)
				}
			}
		}
	}
}

func read(raw []byte) span {
	found := span{
		Trace:  hex.EncodeToString(messages(raw, 1)[0]),
		Name:   string(messages(raw, 5)[0]),
		Start:  fixed(raw, 7),
		End:    fixed(raw, 8),
		Events: map[string]uint64{},
	}
	for _, event := range messages(raw, 11) {
		found.Events[string(messages(event, 2)[0])] = fixed(event, 1)
	}
	return found
}

// messages returns the values of a repeated field of bytes, text or messages.
func messages(raw []byte, field protowire.Number) (found [][]byte) {
	each(raw, func(number protowire.Number, kind protowire.Type, value []byte) {
		if number == field && kind == protowire.BytesType {
			content, _ := protowire.ConsumeBytes(value)
			found = append(found, content)
		}
	})
	return found
}

func fixed(raw []byte, field protowire.Number) (found uint64) {
	each(raw, func(number protowire.Number, kind protowire.Type, value []byte) {
		if number == field && kind == protowire.Fixed64Type {
			found, _ = protowire.ConsumeFixed64(value)
		}
	})
	return found
}

func each(raw []byte, visit func(protowire.Number, protowire.Type, []byte)) {
	for len(raw) > 0 {
		number, kind, tag := protowire.ConsumeTag(raw)
		if tag < 0 {
			log.Fatal(protowire.ParseError(tag))
		}
		size := protowire.ConsumeFieldValue(number, kind, raw[tag:])
		if size < 0 {
			log.Fatal(protowire.ParseError(size))
		}
		visit(number, kind, raw[tag:tag+size])
		raw = raw[tag+size:]
	}
}
