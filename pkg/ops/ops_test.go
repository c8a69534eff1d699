package ops

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carve-csi/carve/pkg/logging/logtest"
	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

func start(t *testing.T, o Options) string {
	t.Helper()
	registry := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "carve_test_total", Help: "A test's counter."})
	registry.MustRegister(counter)
	o.Registry = registry
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("Listen: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, listener, o) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("serve: want a clean end, got %v", err)
			}
		case <-time.After(waittest.Limit):
			t.Error("serve did not end after its context")
		}
	})
	return listener.Addr().String()
}

func get(t *testing.T, url, token string) (int, string) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatalf("NewRequest: %v", err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := (&http.Client{Transport: transport, Timeout: waittest.Limit}).Do(request)
	if err != nil {
		t.Fatalf("GET %s: %v", url, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("read the answer: %v", err)
	}
	return response.StatusCode, string(body)
}

func TestProbesReportTheTruth(t *testing.T) {
	address := start(t, Options{Ready: func(context.Context) error { return errors.New("still connecting") }})
	if code, body := get(t, "https://"+address+"/healthz", ""); code != http.StatusOK {
		t.Errorf("/healthz without a check: want 200, got %d %q", code, body)
	}
	if code, body := get(t, "https://"+address+"/readyz", ""); code != http.StatusServiceUnavailable || !strings.Contains(body, "still connecting") {
		t.Errorf("/readyz: want 503 with the reason, got %d %q", code, body)
	}
}

func TestMetricsAndProfilesNeedTheTokenInTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	address := start(t, Options{MetricsTokenFile: file})
	for path, has := range map[string]string{
		"/metrics": "carve_test_total", "/debug/pprof/heap": "\x1f\x8b", "/debug/pprof/goroutine": "\x1f\x8b", // gzip's magic number
	} {
		t.Run(path, func(t *testing.T) {
			url := "https://" + address + path
			os.Remove(file)
			if code, _ := get(t, url, "anything"); code != http.StatusForbidden {
				t.Errorf("before the file exists: want 403, got %d", code)
			}
			if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
				t.Fatalf("WriteFile: %v", err)
			}
			if code, _ := get(t, url, ""); code != http.StatusUnauthorized {
				t.Errorf("without a token: want 401, got %d", code)
			}
			if code, _ := get(t, url, "wrong"); code != http.StatusUnauthorized {
				t.Errorf("with a wrong token: want 401, got %d", code)
			}
			if code, body := get(t, url, "s3cret"); code != http.StatusOK || !strings.Contains(body, has) {
				t.Errorf("with the token: want 200 and %q in the body, got %d %q", has, code, body)
			}
		})
	}
}

func TestNoOtherProfileIsServed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatalf("WriteFile: %v", err)
	}
	address := start(t, Options{MetricsTokenFile: file})
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/profile", "/debug/pprof/trace"} {
		if code, _ := get(t, "https://"+address+path, "s3cret"); code != http.StatusNotFound {
			t.Errorf("%s: want 404, got %d", path, code)
		}
	}
}

func TestPlaintextIsRefused(t *testing.T) {
	address := start(t, Options{})
	response, err := http.Get("http://" + address + "/healthz")
	if err != nil {
		return
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		t.Error("plain HTTP was answered with 200")
	}
}

func dial(from, address string, protocols ...string) (*tls.Conn, error) {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	return tls.DialWithDialer(dialer, "tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: protocols})
}

// HTTP/2 would allow many concurrent requests per connection.
func TestOnlyHTTP1IsSpoken(t *testing.T) {
	address := start(t, Options{})
	conn := must.Get(dial("127.0.0.1", address, "h2", "http/1.1"))(t)
	if p := conn.ConnectionState().NegotiatedProtocol; p != "http/1.1" {
		t.Errorf("a client that prefers HTTP/2 gets %q", p)
	}
	_ = conn.Close()
	if conn, err := dial("127.0.0.1", address, "h2"); err == nil {
		t.Errorf("a client of HTTP/2 alone gets %q", conn.ConnectionState().NegotiatedProtocol)
		_ = conn.Close()
	}
}

// Any Pod may ask for health, and none may keep the kubelet from doing so.
func TestOneAddressCannotTakeAllConnections(t *testing.T) {
	var log logtest.Recorder
	address := start(t, Options{Log: log.Logger()})
	for i := range maxConnectionsPerAddress {
		conn, err := dial("127.0.0.2", address)
		if err != nil {
			t.Fatalf("an address is refused when it has %d connections: %v", i, err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	if conn, err := dial("127.0.0.2", address); err == nil {
		t.Error("an address has more connections than it may have")
		_ = conn.Close()
	}
	logged := log.Find(func(r logtest.Record) bool { return r.Message == "connection refused: there are too many" })
	if len(logged) != 1 || !strings.HasPrefix(fmt.Sprint(logged[0].Attributes["remote"]), "127.0.0.2:") {
		t.Errorf("this is logged: %v", logged)
	}
	if code, _ := get(t, "https://"+address+"/healthz", ""); code != http.StatusOK {
		t.Errorf("another address gets %d", code)
	}
}
