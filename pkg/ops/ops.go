// Package ops serves /healthz, /readyz, /metrics, and the heap and goroutine profiles of
// /debug/pprof over HTTPS.
//
// Health and readiness need no credentials, because the kubelet's probes carry none; they only
// answer yes or the reason for no. Metrics name volumes and claims, and profiles cost time, so they
// need the bearer token in a file; without such a file they are off.
//
// The certificate is created at start, kept in memory and self-signed. It keeps the token off the
// wire, but does not identify the server as one of the uplink's CA could. A TokenReview per scrape
// would save the token, but give the agents rights in the API.
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
	// probeTimeout limits one health or readiness check. It is below the kubelet's usual probe
	// timeouts.
	probeTimeout = 2 * time.Second
	// certificateLife exceeds the run of any process.
	certificateLife = 10 * 365 * 24 * time.Hour
	// shutdownTimeout limits how long Serve waits for requests in flight.
	shutdownTimeout = 2 * time.Second
	// maxConnections, maxConnectionsPerAddress and maxConnectionsPerNetwork (per /64 of IPv6, which
	// may hold the kubelet and all Pods of its node) limit the connections: any Pod can connect,
	// and must not exhaust the process's memory and open files. The kubelet and Prometheus keep one
	// or two each.
	maxConnections           = 512
	maxConnectionsPerAddress = 8
	maxConnectionsPerNetwork = 128
)

// Options configure Serve.
type Options struct {
	// Address is the host:port to listen on. Serve does nothing if it is empty.
	Address string
	// MetricsTokenFile holds the bearer token for /metrics and /debug/pprof. Every request reads
	// it, so it may be created or replaced at any time. Without a path, or if the file is missing
	// or empty, both answer 403.
	MetricsTokenFile string
	Registry         *prometheus.Registry
	// Healthy returns why the process should be restarted, Ready why it cannot be relied on yet.
	// Nil functions always succeed. Their context ends after probeTimeout.
	Healthy, Ready func(context.Context) error
	Log            *slog.Logger
}

// Serve listens and answers until ctx is done, then returns within about two seconds. It returns an
// error only if it cannot listen or serve.
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
	protocols.SetHTTP1(true) // HTTP/2 would allow many concurrent requests per connection
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

// profile answers with a profile of the runtime, for `go tool pprof`. Importing net/http/pprof
// would serve these and more to everyone on http.DefaultServeMux.
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

// authorized checks the bearer token against the current content of file.
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
