package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// probeTimeout bounds one question about a component's health.
const probeTimeout = 2 * time.Second

// waitHealthy asks url until it answers 200, the component has ended, or ctx is done.
// ended is nil for a component that another process started.
func (c *ControlPlane) waitHealthy(ctx context.Context, url string, ended <-chan error) error {
	client, err := c.probeClient()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	for {
		last := probe(ctx, client, url)
		if last == nil {
			return nil
		}
		select {
		case how := <-ended:
			if how == nil {
				return errors.New("it ended, without an error")
			}
			return fmt.Errorf("it ended: %w", how)
		case <-ctx.Done():
			return fmt.Errorf("not healthy in time: %w; at last: %w", context.Cause(ctx), last)
		case <-time.After(2 * pollInterval):
		}
	}
}

// Healthy reports whether the component called name answers that it is healthy: nil if
// so, or else what is wrong.
func (c *ControlPlane) Healthy(ctx context.Context, name string) error {
	definition, ok := c.definitions()[name]
	if !ok {
		return fmt.Errorf("health of %q: there is no such component of the control plane", name)
	}
	client, err := c.probeClient()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	return probe(ctx, client, definition.health)
}

// probeClient returns a client that dials in the namespace and shows the
// administrator's certificate. It does not check servers': the controller-manager and
// the scheduler make theirs by themselves, and all it asks for is a status.
func (c *ControlPlane) probeClient() (*http.Client, error) {
	admin := c.identities.pairs[adminPair]
	certificate, err := tls.X509KeyPair(admin.certificate, admin.key)
	if err != nil {
		return nil, fmt.Errorf("read the administrator's certificate: %w", err)
	}
	return &http.Client{
		Timeout: probeTimeout,
		Transport: &http.Transport{
			DialContext: c.namespace.DialContext,
			TLSClientConfig: &tls.Config{
				MinVersion:         tls.VersionTLS12,
				Certificates:       []tls.Certificate{certificate},
				InsecureSkipVerify: true,
			},
		},
	}, nil
}

func probe(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("ask %s: %w", url, err)
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err != nil {
		return fmt.Errorf("read the answer of %s: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s: %s", url, response.Status, strings.TrimSpace(string(body)))
	}
	return nil
}
