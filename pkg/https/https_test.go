package https

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/logging/logtest"
	"github.com/carve-csi/carve/pkg/must"
)

// serveAll serves 204 until the test ends, and counts what is rejected.
func serveAll(t *testing.T, log *slog.Logger) (address string, rejected func(reason string) int) {
	t.Helper()
	certified := httptest.NewTLSServer(nil)
	certified.Close()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	var mu sync.Mutex
	counts := map[string]int{}
	go func() {
		done <- Serve(ctx, listener, Options{
			Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }),
			TLS:     &tls.Config{MinVersion: tls.VersionTLS13, Certificates: certified.TLS.Certificates}, IdleTimeout: time.Hour, WriteTimeout: time.Minute,
			OnReject: func(reason string) { mu.Lock(); defer mu.Unlock(); counts[reason]++ },
			Log:      log,
		})
	}()
	t.Cleanup(func() {
		cancel()
		must.Succeed(t, <-done)
	})
	return listener.Addr().String(), func(reason string) int { mu.Lock(); defer mu.Unlock(); return counts[reason] }
}

// answered reports whether a request over a connection from a loopback address is answered.
// The connection is kept until the test ends.
func answered(t *testing.T, from net.IP, address string) bool {
	t.Helper()
	dialer := &tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}, Config: &tls.Config{InsecureSkipVerify: true}}
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	if err != nil {
		return false
	}
	t.Cleanup(func() { _ = conn.Close() })
	request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/", nil))(t)
	if err := request.Write(conn); err != nil {
		return false
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		return false
	}
	return response.Body.Close() == nil && response.StatusCode == http.StatusNoContent
}

// Health is open to any Pod, and none may keep the kubelet from asking for it.
func TestOneAddressCannotTakeAllConnections(t *testing.T) {
	var log logtest.Recorder
	address, rejected := serveAll(t, log.Logger())
	one, other := net.IPv4(127, 0, 0, 2), net.IPv4(127, 0, 0, 3)
	for i := range maxConnectionsPerAddress {
		if !answered(t, one, address) {
			t.Fatalf("an address is refused when it has %d connections", i)
		}
	}
	if answered(t, one, address) {
		t.Error("an address has more connections than it may have")
	}
	logged := log.Find(func(r logtest.Record) bool { return r.Message == "connection refused: there are too many" })
	if rejected("address") != 1 || len(logged) != 1 || !strings.HasPrefix(fmt.Sprint(logged[0].Attributes["remote"]), one.String()+":") {
		t.Errorf("%d are counted, and this is logged: %v", rejected("address"), logged)
	}
	if !answered(t, other, address) {
		t.Error("another address is refused")
	}
}
