// The peer: an admission webhook on controller-runtime, as a user could write it instead of this project.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const host = "127.0.0.1"

type options struct {
	snapshot, tlsDir string
	port, metrics    int
}

func main() {
	var chosen options
	flag.StringVar(&chosen.snapshot, "snapshot", "", "the cluster: one List in JSON")
	flag.StringVar(&chosen.tlsDir, "tls-dir", "", "a folder with tls.crt, tls.key and ca.crt")
	flag.IntVar(&chosen.port, "https-port", webhook.DefaultPort, "POST /mutate")
	flag.IntVar(&chosen.metrics, "http-port", 8080, "GET /metrics")
	flag.Parse()
	ctrl.SetLogger(zap.New())
	if err := run(chosen); err != nil {
		ctrl.Log.Error(err, "the webhook ended")
		os.Exit(1)
	}
}

func run(chosen options) error {
	known, err := readCatalog(chosen.snapshot)
	if err != nil {
		return err
	}
	server := webhook.NewServer(webhook.Options{
		Host: host, Port: chosen.port, CertDir: chosen.tlsDir,
		// Like Kubebuilder's scaffold, which disables HTTP/2.
		TLSOpts: []func(*tls.Config){func(config *tls.Config) {
			config.MinVersion = tls.VersionTLS12
			config.NextProtos = []string{"http/1.1"}
		}},
	})
	// The manager makes no API requests, because the catalog is in the file.
	mgr, err := ctrl.NewManager(&rest.Config{Host: host}, ctrl.Options{
		WebhookServer: server,
		Metrics:       metricsserver.Options{BindAddress: net.JoinHostPort(host, strconv.Itoa(chosen.metrics))},
	})
	if err != nil {
		return err
	}
	mgr.GetWebhookServer().Register("/mutate", &webhook.Admission{
		Handler: &coScheduler{decoder: admission.NewDecoder(mgr.GetScheme()), catalog: known},
	})
	ctx := ctrl.SetupSignalHandler()
	go announce(ctx, server.StartedChecker(), chosen)
	return mgr.Start(ctx)
}

// announce prints one line of JSON on standard output once the server is ready, like this project's webhook.
func announce(ctx context.Context, started healthz.Checker, chosen options) {
	for started(nil) != nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
	line, err := json.Marshal(map[string]string{
		"https": net.JoinHostPort(host, strconv.Itoa(chosen.port)),
		"http":  net.JoinHostPort(host, strconv.Itoa(chosen.metrics)),
		"ca":    filepath.Join(chosen.tlsDir, "ca.crt"),
	})
	if err != nil {
		ctrl.Log.Error(err, "no ready line")
		return
	}
	fmt.Println(string(line))
}
