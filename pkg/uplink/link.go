package uplink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// RefusedError means that the controller's Welcome did not accept the node.
type RefusedError struct {
	// Reason comes from the controller.
	Reason string
}

func (e *RefusedError) Error() string { return "controller refused the uplink: " + e.Reason }

type link struct {
	c    *client
	addr string
	log  *slog.Logger

	up        atomic.Bool
	abandoned chan struct{} // closed when the controller no longer has the address
	once      sync.Once

	lastError  string // text of the last failure that was logged
	lastLogged time.Time
}

func newLink(c *client, addr string) *link {
	return &link{c: c, addr: addr, log: c.log.With("controller", addr), abandoned: make(chan struct{})}
}

// abandon stops dialling. An established connection stays until it breaks: an address leaves DNS
// before the process behind it ends.
func (l *link) abandon() { l.once.Do(func() { close(l.abandoned) }) }

func (l *link) wanted(ctx context.Context) bool {
	select {
	case <-l.abandoned:
		return false
	default:
		return ctx.Err() == nil
	}
}

// run dials and renews until ctx is done, or until the address is abandoned and its last connection
// has ended. It returns with all connections closed.
func (l *link) run(ctx context.Context) {
	var open sync.WaitGroup // current and replaced connections
	defer open.Wait()
	backoff := l.c.backoffMin
	reported := false // whether lookSoon knows that there is no connection
	for l.wanted(ctx) {
		conn, welcome, err := l.dial(ctx)
		if err != nil {
			l.logFailure(ctx, err)
			if !reported {
				l.c.lookSoon()
				reported = true
			}
			l.pause(ctx, jitter(backoff))
			backoff = min(2*backoff, l.c.backoffMax)
			continue
		}
		if !l.handOver(ctx, conn, welcome, &open) {
			return
		}
		started := time.Now()
		l.up.Store(true)
		l.keep(ctx, conn, welcome, &open)
		l.up.Store(false)
		// Count a connection that broke at once as a failed attempt, to spare a controller that
		// accepts and crashes.
		if time.Since(started) > l.c.backoffMax {
			backoff = l.c.backoffMin
		}
		if l.wanted(ctx) {
			l.log.Info("uplink lost, dialling again")
			l.c.lookSoon()
			reported = true
			l.pause(ctx, jitter(backoff))
			backoff = min(2*backoff, l.c.backoffMax)
		}
	}
}

// keep waits until the current connection ends, and replaces it before its credential expires. The
// controller closes a replaced connection when its calls are done.
func (l *link) keep(ctx context.Context, conn *notifyConn, welcome *lvmdv1.Welcome, open *sync.WaitGroup) {
	for {
		timer := time.NewTimer(l.renewAfter(welcome))
		select {
		case <-conn.closed:
			timer.Stop()
			return
		case <-ctx.Done():
			timer.Stop()
			return
		case <-l.abandoned:
			timer.Stop()
			select {
			case <-conn.closed:
			case <-ctx.Done():
			}
			return
		case <-timer.C:
		}
		fresh, freshWelcome, err := l.dial(ctx)
		if err != nil {
			l.logFailure(ctx, fmt.Errorf("renew: %w", err))
			continue // the old one serves until the controller closes it
		}
		if !l.handOver(ctx, fresh, freshWelcome, open) {
			return
		}
		conn, welcome = fresh, freshWelcome
	}
}

// renewAfter returns the time until the connection's replacement: 85 % of the time left. For a
// projected token, that is after the kubelet refreshed it (at 80 % of its lifetime), with time for
// several attempts. If the token was not refreshed yet, the controller answers with the same
// deadline, and the link tries again.
func (l *link) renewAfter(w *lvmdv1.Welcome) time.Duration {
	if !w.GetReauthenticateBy().IsValid() || w.GetReauthenticateBy().AsTime().Unix() <= 0 {
		return 24 * time.Hour
	}
	left := time.Until(w.GetReauthenticateBy().AsTime())
	return max(left*85/100, jitter(l.c.reauthenticateAtLeast))
}

// handOver passes the connection to the gRPC server, and closes it when ctx is done. It returns
// false if the server has stopped.
func (l *link) handOver(ctx context.Context, conn *notifyConn, w *lvmdv1.Welcome, open *sync.WaitGroup) bool {
	if !l.c.lis.put(conn) {
		_ = conn.Close()
		return false
	}
	l.lastError = ""
	l.log.Info("uplink connected", "reauthenticate_by", w.GetReauthenticateBy().AsTime())
	if l.c.onWelcome != nil {
		l.c.onWelcome()
	}
	open.Go(func() {
		select {
		case <-conn.closed:
		case <-ctx.Done():
			_ = conn.Close()
		}
	})
	return true
}

func (l *link) dial(ctx context.Context) (*notifyConn, *lvmdv1.Welcome, error) {
	ctx, cancel := context.WithTimeout(ctx, HandshakeTimeout)
	defer cancel()

	config, err := l.tlsConfig()
	if err != nil {
		return nil, nil, err
	}
	token, err := os.ReadFile(l.c.o.TokenFile)
	if err != nil {
		return nil, nil, fmt.Errorf("token: %w", err)
	}
	var dialer net.Dialer
	if from := l.c.o.From; from.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	raw, err := dialer.DialContext(ctx, "tcp", l.addr)
	if err != nil {
		return nil, nil, err
	}
	if tcp, ok := raw.(*net.TCPConn); ok {
		if err := watchPeer(tcp); err != nil {
			_ = raw.Close()
			return nil, nil, err
		}
	}
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	defer stop()
	conn := tls.Client(raw, config)
	welcome, err := l.introduce(ctx, conn, strings.TrimSpace(string(token)))
	if err != nil {
		raw.Close()
		return nil, nil, err
	}
	if !stop() { // ctx ended in the meantime
		raw.Close()
		return nil, nil, context.Cause(ctx)
	}
	return newNotifyConn(conn), welcome, nil
}

func (l *link) introduce(ctx context.Context, conn *tls.Conn, token string) (*lvmdv1.Welcome, error) {
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("TLS with the controller: %w", err)
	}
	if p := conn.ConnectionState().NegotiatedProtocol; p != alpn {
		return nil, fmt.Errorf("peer speaks %q, not %q: it is no carve controller", p, alpn)
	}
	hello := &lvmdv1.Hello{NodeName: l.c.o.NodeName, Token: token, Version: l.c.o.Version}
	if err := writeFrame(conn, hello); err != nil {
		return nil, err
	}
	welcome := &lvmdv1.Welcome{}
	if err := readFrame(conn, welcome); err != nil {
		return nil, err
	}
	if !welcome.GetAccepted() {
		return nil, &RefusedError{Reason: welcome.GetReason()}
	}
	return welcome, nil
}

func (l *link) tlsConfig() (*tls.Config, error) {
	pem, err := os.ReadFile(l.c.o.CAFile)
	if err != nil {
		return nil, fmt.Errorf("controller CA: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("controller CA: %s holds no PEM certificate", l.c.o.CAFile)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: l.c.o.ServerName,
		RootCAs:    roots,
		NextProtos: []string{alpn},
	}, nil
}

func (l *link) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-l.abandoned:
	}
}

// logFailure logs each cause once, and again every minute while it lasts.
func (l *link) logFailure(ctx context.Context, err error) {
	if ctx.Err() != nil || errors.Is(err, context.Canceled) {
		return
	}
	if msg := err.Error(); msg != l.lastError || time.Since(l.lastLogged) > time.Minute {
		l.lastError, l.lastLogged = msg, time.Now()
		l.log.Warn("no uplink to the controller, trying on", "error", err)
	}
}
