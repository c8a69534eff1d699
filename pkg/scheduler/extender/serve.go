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

	"github.com/carve-csi/carve/pkg/https"
)

// Files are where the key pair and the CA are. They are read at every
// handshake, so they may be replaced at any time.
type Files struct {
	// Certificate and Key are the server's, PEM.
	Certificate, Key string
	// ClientCA, PEM, must have signed the scheduler's certificate. Empty means that
	// no client certificate is asked for.
	ClientCA string
}

// Serve answers on the listener until ctx is done, then ends within
// two seconds. It fails at once when the files cannot be used. onReject is called for connections
// that are closed at once, as https.Options.OnReject.
func Serve(ctx context.Context, listener net.Listener, files Files, handler http.Handler, onReject func(reason string), log *slog.Logger) error {
	if _, err := files.config(); err != nil {
		return errors.Join(err, listener.Close())
	}
	err := https.Serve(ctx, listener, https.Options{
		Handler: handler, WriteTimeout: 15 * time.Second, IdleTimeout: 5 * time.Minute, OnReject: onReject, Log: log,
		TLS: &tls.Config{
			MinVersion:         tls.VersionTLS13,
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return files.config() },
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { // never asked: there is a config for each client
				return nil, errors.New("no certificate")
			},
		},
	})
	if err != nil {
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
