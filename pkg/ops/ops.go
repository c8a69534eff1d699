// Package ops serves what those who run Carve look at: /healthz, /readyz,
// /metrics, and of /debug/pprof the heap and the goroutines, over HTTPS.
//
// Health and readiness are open, because the kubelet's probes carry no
// credentials; they say nothing but yes or why not. Metrics name volumes and
// claims, and profiles cost time, so they are served only to those who present
// the bearer token kept in a file; without such a file no one may read them. The certificate is made
// at start, is kept in memory and is self-signed: it keeps the token off the
// wire, it does not identify the server, as one of the uplink's CA could.
// A TokenReview for each scrape would need no token of its own, and give the
// agents rights in the API.
package ops

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/carve-csi/carve/pkg/connlimit"
)

const (
	// probeTimeout bounds one health or readiness check; it is below the
	// kubelet's usual probe timeouts.
	probeTimeout = 2 * time.Second
	// certificateLife is as long as a process may reasonably run.
	certificateLife = 10 * 365 * 24 * time.Hour
	// shutdownTimeout bounds how long Serve waits for requests in flight.
	shutdownTimeout = 2 * time.Second
	// maxConnections bounds the connections, maxConnectionsPerAddress those of one
	// address, and maxConnectionsPerNetwork those of one /64 of IPv6, in which the kubelet may be
	// together with all Pods of its node: any Pod can connect, and none may take the memory and the open files
	// of the process. The kubelet and Prometheus keep one or two each.
	maxConnections           = 512
	maxConnectionsPerAddress = 8
	maxConnectionsPerNetwork = 128
)

// Options configure Serve.
type Options struct {
	// Address to listen on, host:port. Empty means that nothing is served.
	Address string
	// MetricsTokenFile holds the bearer token for /metrics and /debug/pprof. It is
	// read at every request, so it may be made or replaced at any time. Empty, or a
	// missing or empty file, means that both answer 403.
	MetricsTokenFile string
	// Registry has the metrics.
	Registry *prometheus.Registry
	// Healthy says why the process should be restarted, Ready why it should not
	// be relied on yet. Nil means always. They are given probeTimeout.
	Healthy, Ready func(context.Context) error
	Log            *slog.Logger
}

// Serve listens and answers until ctx is done, then ends within
// two seconds. It returns an error only when it could not listen or serve.
func Serve(ctx context.Context, o Options) error {
	if o.Address == "" {
		<-ctx.Done()
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.Address)
	if err != nil {
		return fmt.Errorf("listen for health and metrics: %w", err)
	}
	return serve(ctx, listener, o)
}

func serve(ctx context.Context, listener net.Listener, o Options) error {
	certificate, err := selfSigned()
	if err != nil {
		return errors.Join(fmt.Errorf("make the certificate for health and metrics: %w", err), listener.Close())
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // by HTTP/2, one connection would carry many requests at once
	server := &http.Server{
		Handler:           handler(o),
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}},
		Protocols:         protocols,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       60 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	limit := &connlimit.Limiter{Total: maxConnections, PerAddress: maxConnectionsPerAddress, PerNetwork: maxConnectionsPerNetwork}
	rejections := &connlimit.Log{Logger: o.Log, Message: "connection refused: there are too many"}
	listener = limit.Listener(listener, func(peer net.Addr, reason connlimit.Reason) { rejections.Reject(peer, string(reason), nil) })
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(listener, "", "") }()
	select {
	case err = <-served:
	case <-ctx.Done():
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if server.Shutdown(stopping) != nil {
			_ = server.Close()
		}
		err = <-served
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health and metrics: %w", err)
	}
	return nil
}

func handler(o Options) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", probe(o.Healthy))
	mux.Handle("GET /readyz", probe(o.Ready))
	metrics := promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelError)})
	mux.Handle("GET /metrics", authorized(o.MetricsTokenFile, metrics))
	for _, name := range []string{"heap", "goroutine"} {
		mux.Handle("GET /debug/pprof/"+name, authorized(o.MetricsTokenFile, profile(name, o.Log)))
	}
	return mux
}

// profile answers with one of the runtime's profiles, for `go tool pprof`. The package net/http/pprof, once
// imported, would serve them and more to everyone on http.DefaultServeMux.
func profile(name string, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		if err := pprof.Lookup(name).WriteTo(w, 0); err != nil {
			log.Info("a profile was not read to its end", "profile", name, "error", err)
		}
	})
}

func probe(check func(context.Context) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), probeTimeout)
		defer cancel()
		if check != nil {
			if err := check(ctx); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
		fmt.Fprintln(w, "ok")
	})
}

// authorized lets a request through only with the bearer token that the file
// holds now.
func authorized(file string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want := ""
		if file != "" {
			if content, err := os.ReadFile(file); err == nil {
				want = strings.TrimSpace(string(content))
			}
		}
		if want == "" {
			http.Error(w, "this is off: no token is configured", http.StatusForbidden)
			return
		}
		got, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !bearer || subtle.ConstantTimeCompare([]byte(got), []byte(want)) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a valid bearer token is needed", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "carve-ops"},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(certificateLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
