package uplink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// ErrSessionClosed means that the session was retired or closed before the call was sent: the node
// has certainly not seen it. A call that is cut off later returns a gRPC status, and may have had
// effect.
var ErrSessionClosed = errors.New("uplink session is closed")

// maxMessageBytes limits one answer of lvmd, unless a call option raises it.
const maxMessageBytes = 4 << 20

// answerWindow is how many bytes of an answer a node may send ahead of the reader: each call can
// hold this much of the controller's memory besides the answer. A larger answer takes one more
// round trip. connWindow limits the bytes in flight of all answers. Static windows save a ping per
// call.
const (
	answerWindow = 64 << 10
	connWindow   = 1 << 20
)

// requestBuffer is gRPC's write buffer, in bytes. Every session has one when all nodes are called
// at once. A larger request is written in parts.
const requestBuffer = 4 << 10

// maxTrailerBytes limits the status of an answer, with its message and details.
const maxTrailerBytes = 64 << 10

// Session is one accepted connection of a node. It implements grpc.ClientConnInterface:
// lvmdv1.NewLVMDClient(session) calls the node. Its methods may be called concurrently.
type Session struct {
	node, version string
	remote        string
	reauthBy      time.Time
	conn          *notifyConn
	held          held
	cc            *grpc.ClientConn

	mu      sync.Mutex
	calls   int           // unary calls in flight
	retired bool          // rejects new calls
	idle    chan struct{} // closed when retired and calls is 0

	done chan struct{} // closed when the connection is gone
}

var _ grpc.ClientConnInterface = (*Session)(nil)

// newSession uses conn as the transport of a gRPC client. The credentials are "insecure" because
// conn already has TLS. The caller must call awaitEnd: a goroutine for that would take 2 KiB per
// node.
func newSession(conn net.Conn, node, version string, reauthBy time.Time) (*Session, error) {
	s := &Session{
		node: node, version: version, reauthBy: reauthBy,
		remote: conn.RemoteAddr().String(),
		held:   held{since: time.Now()},
		idle:   make(chan struct{}), done: make(chan struct{}),
	}
	s.conn = newNotifyConn(&heldConn{conn, &s.held})
	handed := make(chan net.Conn, 1)
	handed <- s.conn
	cc, err := grpc.NewClient("passthrough:///"+node,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case c := <-handed:
				return c, nil
			default: // gRPC lost the connection and wants another
				_ = s.conn.Close()
				return nil, ErrSessionClosed
			}
		}),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: KeepaliveInterval, Timeout: KeepaliveTimeout, PermitWithoutStream: true,
		}),
		grpc.WithStaticStreamWindowSize(answerWindow), grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithMaxHeaderListSize(maxTrailerBytes),
		// Without a read buffer, gRPC reads each frame separately, as held assumes.
		grpc.WithReadBufferSize(0), grpc.WithStatsHandler(&s.held),
		grpc.WithWriteBufferSize(requestBuffer),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
	)
	if err != nil {
		return nil, fmt.Errorf("uplink session of node %s: %w", node, err)
	}
	s.cc = cc
	cc.Connect()
	return s, nil
}

// awaitEnd waits until the connection is closed, then frees the session. Call it once.
func (s *Session) awaitEnd() {
	<-s.conn.closed
	s.cc.Close()
	close(s.done)
}

// Node returns the name that the peer authenticated as.
func (s *Session) Node() string { return s.node }

// Version returns the version that lvmd stated.
func (s *Session) Version() string { return s.version }

// RemoteAddr returns the peer's address, for logs.
func (s *Session) RemoteAddr() string { return s.remote }

// Done is closed when the connection is gone.
func (s *Session) Done() <-chan struct{} { return s.done }

// Close ends the session at once; calls in flight fail.
func (s *Session) Close() { _ = s.conn.Close() }

// Retire rejects new calls, gives unary calls in flight up to drain to finish, then closes the
// session. It does not wait.
func (s *Session) Retire(drain time.Duration) {
	s.mu.Lock()
	if !s.retired {
		s.retired = true
		if s.calls == 0 {
			close(s.idle)
		}
	}
	s.mu.Unlock()
	go func() {
		t := time.NewTimer(drain)
		defer t.Stop()
		select {
		case <-s.idle:
		case <-t.C:
		case <-s.done:
		}
		s.Close()
	}()
}

// Invoke makes a unary call.
func (s *Session) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	return s.cc.Invoke(ctx, method, args, reply, opts...)
}

// NewStream opens a stream.
func (s *Session) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s.mu.Lock()
	retired := s.retired
	s.mu.Unlock()
	if retired || s.isClosed() {
		return nil, ErrSessionClosed
	}
	return s.cc.NewStream(ctx, desc, method, opts...)
}

func (s *Session) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired || s.isClosed() {
		return ErrSessionClosed
	}
	s.calls++
	return nil
}

func (s *Session) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls--
	if s.retired && s.calls == 0 {
		close(s.idle)
	}
}

func (s *Session) isClosed() bool {
	select {
	case <-s.conn.closed:
		return true
	default:
		return false
	}
}
