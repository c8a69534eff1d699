package uplink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
)

func TestNodeRefusesAControllerOfAnotherCA(t *testing.T) {
	ctrl := startController(t, newTestCA(t, "ours"), "127.0.0.1:0")
	var sawToken atomic.Bool
	ctrl.set(func() {
		ctrl.auth = func(*lvmdv1.Hello) (Grant, error) { sawToken.Store(true); return Grant{}, nil }
	})
	node := startNode(t, newTestCA(t, "theirs"), ctrl.addr, nil)
	node.failure(t, "its CA did not sign that", func(err error) bool {
		var unknown x509.UnknownAuthorityError
		return errors.As(err, &unknown)
	})
	ctrl.refusals(t, 2) // the node keeps dialling, and each connection ends here
	ctrl.noSession(t)
	if sawToken.Load() {
		t.Error("the node sent its token to a controller that it cannot verify")
	}
}

func TestNodeRefusesAControllerOfAnotherName(t *testing.T) {
	ca := newTestCA(t, "ca")
	ctrl := startController(t, ca, "127.0.0.1:0")
	var sawToken atomic.Bool
	ctrl.set(func() {
		ctrl.cert = ca.serving(t, "other.test")
		ctrl.auth = func(*lvmdv1.Hello) (Grant, error) { sawToken.Store(true); return Grant{}, nil }
	})
	node := startNode(t, ca, ctrl.addr, nil)
	node.failure(t, "the certificate is for another name", func(err error) bool {
		var name x509.HostnameError
		return errors.As(err, &name) && name.Host == testHost
	})
	ctrl.refusals(t, 2)
	ctrl.noSession(t)
	if sawToken.Load() {
		t.Error("the node sent its token to a controller of another name")
	}
}

func TestControllerRefusesPlaintextAndOldTLSAndUnknownPeers(t *testing.T) {
	ca := newTestCA(t, "ca")
	ctrl := startController(t, ca, "127.0.0.1:0")
	dial := func() net.Conn {
		c := must.Get(net.Dial("tcp", ctrl.addr))(t)
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		return c
	}
	t.Run("a Hello without TLS is not read", func(t *testing.T) {
		c := dial()
		must.Succeed(t, writeFrame(c, &lvmdv1.Hello{NodeName: "node-1", Token: testToken}))
		if err := readFrame(c, &lvmdv1.Welcome{}); err == nil {
			t.Error("plaintext was welcomed")
		}
	})
	t.Run("TLS 1.2 is not spoken", func(t *testing.T) {
		c := tls.Client(dial(), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, NextProtos: []string{alpn}})
		if err := c.Handshake(); err == nil {
			t.Error("TLS 1.2 was accepted")
		}
	})
	t.Run("a peer without our application protocol is cut off", func(t *testing.T) {
		c := tls.Client(dial(), &tls.Config{InsecureSkipVerify: true})
		if err := c.Handshake(); err != nil {
			return
		}
		_ = writeFrame(c, &lvmdv1.Hello{NodeName: "node-1", Token: testToken})
		if err := readFrame(c, &lvmdv1.Welcome{}); err == nil {
			t.Error("a peer without ALPN was welcomed")
		}
	})
	t.Run("an oversize frame is not read", func(t *testing.T) {
		c := tls.Client(dial(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{alpn}})
		var header [4]byte
		binary.BigEndian.PutUint32(header[:], MaxFrameBytes+1)
		must.Get(c.Write(header[:]))(t)
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
			t.Errorf("after an oversize frame: %v, want the connection closed", err)
		}
	})
	ctrl.refusals(t, 4) // one for each above
	ctrl.noSession(t)
}

func TestRefusedNodeLearnsTheReasonAndTriesOn(t *testing.T) {
	ca := newTestCA(t, "ca")
	ctrl := startController(t, ca, "127.0.0.1:0")
	node := startNode(t, ca, ctrl.addr, nil)
	s := ctrl.session(t)
	writeFile(t, node.tok, []byte("bad-token"))
	s.Close() // the next dial reads the token file
	var refused *RefusedError
	if err := node.failure(t, "it gets the reason", func(err error) bool { return errors.As(err, &refused) }); refused.Reason != "token is not good" {
		t.Errorf("a dial with a bad token: %v, want the controller's reason", err)
	}
	ctrl.noSession(t)
	l := newLink(node.client, ctrl.addr)
	_, _, err := l.dial(context.Background())
	if refused = nil; !errors.As(err, &refused) || refused.Reason != "token is not good" {
		t.Errorf("dial with a bad token: %v, want the controller's reason", err)
	}
	ctrl.set(func() {
		ctrl.auth = func(*lvmdv1.Hello) (Grant, error) { return Grant{}, errors.New("secret detail") }
	})
	if _, _, err := l.dial(context.Background()); err == nil || strings.Contains(err.Error(), "secret detail") {
		t.Errorf("the controller's own trouble was sent to the peer: %v", err)
	}
	ctrl.set(func() {
		ctrl.auth = func(*lvmdv1.Hello) (Grant, error) { return Grant{}, nil }
	})
	if err := call(t, ctrl.session(t), "a"); err != nil {
		t.Error(err)
	}
}
