// Package https serves HTTPS until it is asked to stop.
package https

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/carve-csi/carve/pkg/connlimit"
)

const (
	// shutdownTimeout bounds how long Serve waits for requests in flight.
	shutdownTimeout = 2 * time.Second
	// maxConnections bounds the connections of a server, maxConnectionsPerAddress those of one
	// address, and maxConnectionsPerNetwork those of one /64 of IPv6, in which the kubelet may be
	// together with all Pods of its node: any Pod can connect, and none may take the memory and the open files
	// of the process. One with few connections takes a place of one with many, as the kubelet's probes do.
	maxConnections           = 512
	maxConnectionsPerAddress = 32
	maxConnectionsPerNetwork = 128
)

// Options are what servers differ in. All are required.
type Options struct {
	Handler http.Handler
	// TLS has the certificate, or finds it. Its MinVersion is TLS 1.3 in any case.
	TLS *tls.Config
	// WriteTimeout and IdleTimeout bound an answer, and the time until the next
	// request on a connection.
	WriteTimeout, IdleTimeout time.Duration
	// OnReject is called for every connection that is closed at once, with one of
	// connlimit.ReasonNames. It is called concurrently and must not block.
	OnReject func(reason string)
	// Log gets, at level debug, what goes wrong with connections, and those that are closed at once.
	Log *slog.Logger
}

// Serve answers on the listener until ctx is done, then ends within two seconds.
// It returns an error only when it could not serve.
func Serve(ctx context.Context, listener net.Listener, o Options) error {
	o.TLS.MinVersion = tls.VersionTLS13
	server := &http.Server{
		Handler:           o.Handler,
		TLSConfig:         o.TLS,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      o.WriteTimeout,
		IdleTimeout:       o.IdleTimeout,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	limit := &connlimit.Limiter{Total: maxConnections, PerAddress: maxConnectionsPerAddress, PerNetwork: maxConnectionsPerNetwork}
	rejections := &connlimit.Log{Logger: o.Log, Message: "connection refused: there are too many"}
	listener = limit.Listener(listener, func(peer net.Addr, reason connlimit.Reason) {
		o.OnReject(string(reason))
		rejections.Reject(peer, string(reason), nil)
	})
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(listener, "", "") }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(stopping); err != nil {
		_ = server.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
