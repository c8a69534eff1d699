package extender

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"
)

// shutdownTimeout bounds how long Serve waits for requests in flight.
const shutdownTimeout = 2 * time.Second

// Files are where the key pair and the CA are. They are read at every
// handshake, so they may be replaced at any time.
type Files struct {
	// Certificate and Key are the server's, PEM.
	Certificate, Key string
	// ClientCA, PEM, is who must have signed the scheduler's certificate. Empty
	// means that anybody may ask.
	ClientCA string
}

// Serve answers on the listener until ctx is done, then ends within
// shutdownTimeout. It fails at once when the files cannot be used.
func Serve(ctx context.Context, listener net.Listener, files Files, handler http.Handler, log *slog.Logger) error {
	if _, err := files.config(); err != nil {
		return errors.Join(err, listener.Close())
	}
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      15 * time.Second,
		IdleTimeout:       5 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		TLSConfig: &tls.Config{
			MinVersion:         tls.VersionTLS13,
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return files.config() },
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { // never asked: there is a config for each client
				return nil, errors.New("no certificate")
			},
		},
	}
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(listener, "", "") }()
	select {
	case err := <-served:
		return fmt.Errorf("serve the scheduler: %w", err)
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(stopping); err != nil {
		_ = server.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the scheduler: %w", err)
	}
	return nil
}

func (f Files) config() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.Certificate, f.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate for the scheduler (%s, %s): %w", f.Certificate, f.Key, err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}
	if f.ClientCA == "" {
		return config, nil
	}
	content, err := os.ReadFile(f.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("CA of the scheduler's certificate: %w", err)
	}
	config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(content) {
		return nil, fmt.Errorf("CA of the scheduler's certificate: no PEM certificate in %s", f.ClientCA)
	}
	return config, nil
}
