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

// ErrSessionClosed is returned by calls on a session that was retired or
// closed before the call was sent: the node has certainly not seen it. A call
// cut off on its way returns a gRPC status instead, and may have had effect.
var ErrSessionClosed = errors.New("uplink session is closed")

// maxMessageBytes bounds one answer of lvmd. A call whose answers may be larger says
// so by a call option.
const maxMessageBytes = 4 << 20

// answerWindow is how much of an answer a node may send ahead of what was read, in bytes:
// what each call can hold of the controller's memory, beside the answer. A larger answer takes
// one round trip more. connWindow bounds what is on its way of all answers. Where windows grow,
// each call costs a ping more.
const (
	answerWindow = 64 << 10
	connWindow   = 1 << 20
)

// requestBuffer is what gRPC takes for what it writes at once, in bytes. All sessions have one at
// the same time when all nodes are called. A larger request is written in parts.
const requestBuffer = 4 << 10

// maxTrailerBytes bounds the status of an answer, with its message and details.
const maxTrailerBytes = 64 << 10

// Session is one accepted connection of a node. It implements
// grpc.ClientConnInterface: lvmdv1.NewLVMDClient(session) calls the node.
// All methods may be called concurrently.
type Session struct {
	node, version string
	remote        string
	reauthBy      time.Time
	conn          *notifyConn
	held          held
	cc            *grpc.ClientConn

	mu      sync.Mutex
	calls   int           // unary calls in flight
	retired bool          // takes no new calls
	idle    chan struct{} // closed when retired and calls is 0

	done chan struct{} // closed when the connection is gone
}

var _ grpc.ClientConnInterface = (*Session)(nil)

// newSession makes conn the transport of a gRPC client. The TLS below is
// already in place, hence the "insecure" credentials above it. The caller calls awaitEnd: each
// goroutine less is 2 KiB less for each node.
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
			default: // gRPC lost the connection and would like another
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
		// Without a buffer of gRPC's, each frame is read by itself, and held counts them.
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

// awaitEnd waits until the connection is closed, and ends the session. It is called once.
func (s *Session) awaitEnd() {
	<-s.conn.closed
	s.cc.Close()
	close(s.done)
}

// Node is the name of the node that the peer proved to be.
func (s *Session) Node() string { return s.node }

// Version is the version that lvmd stated.
func (s *Session) Version() string { return s.version }

// RemoteAddr is the peer's address, for logs.
func (s *Session) RemoteAddr() string { return s.remote }

// Done is closed when the connection is gone, for whatever reason.
func (s *Session) Done() <-chan struct{} { return s.done }

// Close ends the session at once; calls in flight fail.
func (s *Session) Close() { _ = s.conn.Close() }

// Retire takes no new calls, lets those in flight finish for at most drain,
// and closes the session then. It returns at once. Streams are not waited for.
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
