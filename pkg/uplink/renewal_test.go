package uplink

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

func TestRotatedCAIsReadAtTheNextDial(t *testing.T) {
	before, after := newTestCA(t, "before"), newTestCA(t, "after")
	ctrl := startController(t, before, "127.0.0.1:0")
	node := startNode(t, before, ctrl.addr, nil)
	s := ctrl.session(t)
	writeFile(t, node.ca, append(before.pem(), after.pem()...))
	ctrl.set(func() { ctrl.cert = after.serving(t, testHost) })
	s.Close()
	if err := call(t, ctrl.session(t), "a"); err != nil {
		t.Error(err)
	}
}

func TestConnectionIsReplacedBeforeItsCredentialRunsOutAndNoCallIsCut(t *testing.T) {
	ca := newTestCA(t, "ca")
	ctrl := startController(t, ca, "127.0.0.1:0")
	ctrl.set(func() {
		ctrl.auth = func(*lvmdv1.Hello) (Grant, error) {
			return Grant{ReauthenticateBy: time.Now().Add(500 * time.Millisecond)}, nil
		}
	})
	node := startNode(t, ca, ctrl.addr, func(c *client) { c.reauthenticateAtLeast = 10 * time.Millisecond })
	old := ctrl.session(t)
	slow := make(chan error, 1)
	go func() { slow <- call(t, old, "slow") }()
	<-node.lvmd.entered

	fresh := ctrl.session(t)
	select {
	case <-old.Done():
		t.Fatal("the old connection ended before the new one stood")
	default:
	}
	old.Retire(10 * time.Second)
	if err := call(t, old, "a"); !errors.Is(err, ErrSessionClosed) {
		t.Errorf("new call on a retired session: %v, want ErrSessionClosed", err)
	}
	if err := call(t, fresh, "a"); err != nil {
		t.Error(err)
	}
	close(node.lvmd.release)
	if err := <-slow; err != nil {
		t.Errorf("the call in flight was cut: %v", err)
	}
	waitDone(t, old)
}

func TestRotationOfTheCAAndOfTokensCutsNoCall(t *testing.T) {
	before, after := newTestCA(t, "before"), newTestCA(t, "after")
	ctrl := startController(t, before, "127.0.0.1:0")
	token := testToken
	var renewed atomic.Int32
	ctrl.set(func() {
		ctrl.auth = func(h *lvmdv1.Hello) (Grant, error) {
			if h.GetToken() != token {
				return Grant{}, &DeniedError{Reason: "token is not good"}
			}
			if token != testToken {
				renewed.Add(1)
			}
			return Grant{ReauthenticateBy: time.Now().Add(300 * time.Millisecond)}, nil
		}
	})
	node := startNode(t, before, ctrl.addr, func(c *client) { c.reauthenticateAtLeast = 10 * time.Millisecond })
	old := ctrl.session(t)
	slow := make(chan error, 1)
	go func() { slow <- call(t, old, "slow") }()
	<-node.lvmd.entered

	// In the controller's order: first all nodes trust both CAs, then it serves with the new one,
	// then none trusts the old one.
	writeFile(t, node.ca, append(before.pem(), after.pem()...))
	writeFile(t, node.tok, []byte("next-token"))
	ctrl.set(func() { token, ctrl.cert = "next-token", after.serving(t, testHost) })
	for renewed.Load() == 0 {
		ctrl.session(t) // dialled before the rotation
	}
	if err := call(t, ctrl.session(t), "a"); err != nil {
		t.Errorf("after the rotation: %v", err)
	}
	writeFile(t, node.ca, after.pem())
	if err := call(t, ctrl.session(t), "a"); err != nil {
		t.Errorf("without the old CA: %v", err)
	}
	close(node.lvmd.release)
	if err := <-slow; err != nil {
		t.Errorf("the call in flight was cut: %v", err)
	}
}

func TestSessionIsClosedWhenItsCredentialWasNotRenewed(t *testing.T) {
	ca := newTestCA(t, "ca")
	ctrl := startController(t, ca, "127.0.0.1:0")
	ctrl.server.grace = 0
	ctrl.set(func() {
		ctrl.auth = func(*lvmdv1.Hello) (Grant, error) {
			return Grant{ReauthenticateBy: time.Now().Add(100 * time.Millisecond)}, nil
		}
	})
	startNode(t, ca, ctrl.addr, nil) // renews at most every 30 s
	waitDone(t, ctrl.session(t))
	ctrl.session(t) // the node reconnects by itself
}
