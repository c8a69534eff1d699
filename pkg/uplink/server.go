package uplink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/connlimit"
)

const (
	alpn = names.UplinkALPN

	// maxHandshakes limits the connected peers that are not accepted yet, and
	// maxHandshakesPerAddress those of one address: any Pod can connect, and must not starve the
	// nodes. Nodes behind one address, such as a gateway, share it; rejected ones dial again. A /64
	// of IPv6 may be one node with its Pods, or all nodes: maxHandshakesPerNetwork limits an
	// attacker who has all its addresses. keptHandshakes of the total are reserved for known
	// addresses of agents.
	maxHandshakes           = 1024
	maxHandshakesPerAddress = 8
	maxHandshakesPerNetwork = 128
	keptHandshakes          = 256

	// maxHelloName limits, in bytes, the name and the version of a node, which are logged.
	maxHelloName = 253

	// failureHold is how long a failed handshake still counts, so that an address cannot fail more
	// than maxHandshakesPerAddress times in that period.
	failureHold = time.Second
)

const (
	reasonHandshake   = "handshake"
	reasonCredentials = "credentials"
)

// RejectReasons lists the arguments of OnReject: the limits per address, per /64 of IPv6 and in
// total, a failed handshake, and credentials that are invalid or could not be checked.
var RejectReasons = []string{
	string(connlimit.ReasonAddress), string(connlimit.ReasonNetwork), string(connlimit.ReasonTotal), reasonHandshake, reasonCredentials,
}

// Grant is the result of accepting a Hello.
type Grant struct {
	// ReauthenticateBy is when the credential expires; zero means never.
	ReauthenticateBy time.Time
}

// DeniedError is an Authenticate error that the peer may see: its credential is invalid. Other
// errors are only logged.
type DeniedError struct {
	// Reason is sent to the node.
	Reason string
}

func (e *DeniedError) Error() string { return e.Reason }

// ServerConfig configures the controller's end. Known, OnReject and Log are optional.
type ServerConfig struct {
	// GetCertificate returns the serving certificate, per handshake.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Authenticate decides whether the peer is the node that it claims to be. It is called
	// concurrently, with a deadline within HandshakeTimeout.
	Authenticate func(context.Context, *lvmdv1.Hello) (Grant, error)
	// OnSession receives and then owns every accepted session. It is called concurrently and must
	// not block.
	OnSession func(*Session)
	// Known reports whether an agent is known to be at an address. It is called concurrently and
	// must be quick. If it is nil, no address is known.
	Known func(netip.Addr) bool
	// OnReject is called for every rejected peer, with one of RejectReasons. It is called
	// concurrently and must not block.
	OnReject func(reason string)
	// Log defaults to slog.Default().
	Log *slog.Logger
}

// Server accepts uplinks.
type Server struct {
	c          ServerConfig
	log        *slog.Logger
	grace      time.Duration
	handshakes connlimit.Limiter
	hold       time.Duration
	rejections connlimit.Log

	mu       sync.Mutex
	sessions map[*Session]struct{}
	stopped  bool
}

// NewServer returns a server; Serve runs it.
func NewServer(c ServerConfig) *Server {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	s := &Server{
		c: c, log: c.Log.With("component", "uplink"),
		grace: ExpiryGrace,
		handshakes: connlimit.Limiter{Total: maxHandshakes, PerAddress: maxHandshakesPerAddress, PerNetwork: maxHandshakesPerNetwork,
			Kept: keptHandshakes, Known: c.Known},
		hold:     failureHold,
		sessions: map[*Session]struct{}{},
	}
	s.rejections.Logger, s.rejections.Level, s.rejections.Message = s.log, slog.LevelWarn, "uplink refused"
	return s
}

func (s *Server) reject(peer net.Addr, reason string, err error) {
	if s.c.OnReject != nil {
		s.c.OnReject(reason)
	}
	s.rejections.Reject(peer, reason, err)
}

// Serve accepts on lis until ctx is done, then closes lis and every session and returns nil. It
// returns an error if lis ends otherwise.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	stop := context.AfterFunc(ctx, func() { lis.Close() })
	defer stop()
	var peers sync.WaitGroup
	defer peers.Wait()
	defer s.closeAll()
	for {
		conn, err := lis.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("accept uplinks: %w", err)
			}
			s.log.Warn("uplink cannot be accepted, trying on", "error", err) // out of files, for example
			sleep(ctx, 100*time.Millisecond)
			continue
		}
		end, reason := s.handshakes.Begin(conn.RemoteAddr())
		if end == nil {
			conn.Close() // the peer will dial again
			s.reject(conn.RemoteAddr(), string(reason), nil)
			continue
		}
		peers.Go(func() { s.welcome(ctx, conn, end) })
	}
}

// welcome serves a connection until it ends. It calls introduced once the handshake no longer
// counts.
func (s *Server) welcome(ctx context.Context, raw net.Conn, introduced func()) {
	session, reason, err := s.handshake(ctx, raw)
	if err != nil {
		raw.Close()
		time.AfterFunc(s.hold, introduced)
		if ctx.Err() == nil {
			s.reject(raw.RemoteAddr(), reason, err)
		}
		return
	}
	introduced()
	if !s.add(session) {
		session.Close()
		session.awaitEnd()
		return
	}
	defer s.remove(session)
	s.log.Info("node connected", "node", session.node, "remote", session.remote, "version", session.version,
		"reauthenticate_by", session.reauthBy)
	s.c.OnSession(session)

	var expired <-chan time.Time
	if !session.reauthBy.IsZero() {
		t := time.NewTimer(time.Until(session.reauthBy) + s.grace)
		defer t.Stop()
		expired = t.C
	}
	select {
	case <-session.conn.closed:
	case <-ctx.Done():
		session.Close()
	case <-expired:
		s.log.Warn("node did not renew its uplink in time, closing it", "node", session.node)
		session.Close()
	}
	session.awaitEnd()
	if session.held.tooMuch() {
		s.log.Warn("uplink closed", "node", session.node, "error", errHeldTooMuch)
	}
}

func (s *Server) handshake(ctx context.Context, raw net.Conn) (*Session, string, error) {
	ctx, cancel := context.WithTimeout(ctx, HandshakeTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	defer stop()

	if tcp, ok := raw.(*net.TCPConn); ok {
		if err := watchPeer(tcp); err != nil {
			return nil, reasonHandshake, err
		}
	}
	conn := tls.Server(raw, &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: s.c.GetCertificate,
		NextProtos:     []string{alpn},
		// A resumed session would skip the check of a replaced certificate.
		SessionTicketsDisabled: true,
	})
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, reasonHandshake, fmt.Errorf("TLS: %w", err)
	}
	if p := conn.ConnectionState().NegotiatedProtocol; p != alpn {
		return nil, reasonHandshake, fmt.Errorf("peer speaks %q, not %q", p, alpn)
	}
	hello := &lvmdv1.Hello{}
	if err := readFrame(conn, hello); err != nil {
		return nil, reasonHandshake, err
	}
	if len(hello.GetNodeName()) > maxHelloName || len(hello.GetVersion()) > maxHelloName {
		return nil, reasonHandshake, errors.New("the name of the node or its version is too long")
	}
	grant, err := s.c.Authenticate(ctx, hello)
	if err != nil {
		reason := "the controller cannot check credentials at the moment"
		var denied *DeniedError
		if errors.As(err, &denied) {
			reason = denied.Reason
		}
		_ = writeFrame(conn, &lvmdv1.Welcome{Reason: reason}) // courtesy
		_ = conn.CloseWrite()
		return nil, reasonCredentials, fmt.Errorf("node %q: %w", hello.GetNodeName(), err)
	}
	welcome := &lvmdv1.Welcome{Accepted: true}
	if !grant.ReauthenticateBy.IsZero() {
		welcome.ReauthenticateBy = timestamppb.New(grant.ReauthenticateBy)
	}
	if err := writeFrame(conn, welcome); err != nil {
		return nil, reasonHandshake, err
	}
	if !stop() {
		return nil, reasonHandshake, context.Cause(ctx)
	}
	session, err := newSession(conn, hello.GetNodeName(), hello.GetVersion(), grant.ReauthenticateBy)
	return session, reasonHandshake, err
}

func (s *Server) add(session *Session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return false
	}
	s.sessions[session] = struct{}{}
	return true
}

func (s *Server) remove(session *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, session)
}

func (s *Server) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for session := range s.sessions {
		session.Close()
	}
}
