package main

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

func TestAServiceManagerIsNotifiedInOneMessageAndChildrenDoNotKnowIt(t *testing.T) {
	for name, address := range map[string]string{
		"at a path":           filepath.Join(t.TempDir(), "notify"),
		"at an abstract name": "@carve-lvmd-notify-test",
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			t.Setenv(notifySocket, address)
			m, err := findManager()
			if err != nil {
				t.Fatal(err)
			}
			if got, there := os.LookupEnv(notifySocket); there {
				t.Errorf("%s=%s is still in the environment", notifySocket, got)
			}
			must.Succeed(t, m.notify("READY=1", "STATUS=serving"))
			b := make([]byte, 100)
			n, err := l.Read(b)
			if got := string(b[:n]); err != nil || got != "READY=1\nSTATUS=serving" {
				t.Errorf("heard %q, %v", got, err)
			}
		})
	}
}

func TestWithoutAServiceManagerNothingIsSent(t *testing.T) {
	t.Setenv(notifySocket, "")
	m := must.Get(findManager())(t)
	if err := m.notify("READY=1"); err != nil {
		t.Error(err)
	}
}

func TestAServiceManagerThatIsGoneIsAnError(t *testing.T) {
	if err := (manager{filepath.Join(t.TempDir(), "gone")}).notify("READY=1"); err == nil {
		t.Error("no error")
	}
}
