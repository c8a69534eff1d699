//go:build e2e

package netns

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// create makes a namespace for one test and removes it after the test.
func create(t *testing.T, name string) Namespace {
	t.Helper()
	n, err := Create(name, DefaultGateway)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Remove(context.Background(), name); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(n.Path()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s after Remove: want %v, got %v", n.Path(), fs.ErrNotExist, err)
		}
	})
	return n
}

func TestCreateAndRemoveTwiceIsHarmless(t *testing.T) {
	n := create(t, "carve-test-twice")
	if _, err := Create(n.Name(), DefaultGateway); err != nil {
		t.Errorf("second Create: %v", err)
	}
	for range 2 {
		if err := Remove(t.Context(), n.Name()); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}
}

func TestCreateCompletesWhatAnInterruptedOneLeft(t *testing.T) {
	name := "carve-test-interrupted"
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, name), nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open of the remains: want %v, got %v", fs.ErrNotExist, err)
	}
	n := create(t, name)
	if err := n.Run(exec.Command("true")); err != nil {
		t.Error(err)
	}
}

func TestConnectionsStayInside(t *testing.T) {
	n := create(t, "carve-test-inside")
	listener, err := n.Listen(t.Context(), "tcp", "10.80.0.1:7000")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return // Closed by the end of the test.
			}
			_, _ = io.WriteString(connection, "inside")
			_ = connection.Close()
		}
	}()
	connection, err := n.DialContext(t.Context(), "tcp", "10.80.0.1:7000")
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	if got, err := io.ReadAll(connection); err != nil || string(got) != "inside" {
		t.Errorf("read from the listener inside: want %q, got %q, %v", "inside", got, err)
	}

	// Something else may answer at that address out there: what counts is who.
	dialer := net.Dialer{Timeout: 500 * time.Millisecond}
	outside, err := dialer.DialContext(t.Context(), "tcp", "10.80.0.1:7000")
	if err != nil {
		return
	}
	defer outside.Close()
	if err := outside.SetReadDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(outside); string(got) == "inside" {
		t.Error("the listener inside the namespace was reached from outside")
	}
}

func TestTapsAndRoutesComeAndGo(t *testing.T) {
	n := create(t, "carve-test-links")
	pods := netip.MustParsePrefix("10.244.3.0/24")
	for range 2 { // Both are idempotent.
		if err := n.AddTap("tap0"); err != nil {
			t.Fatal(err)
		}
		if err := n.SetRoute(pods, netip.MustParseAddr("10.80.0.10")); err != nil {
			t.Fatal(err)
		}
	}
	if names := interfaces(t, n); !slices.Contains(names, "tap0") {
		t.Errorf("interfaces after AddTap: got %v", names)
	}
	for _, plugged := range []bool{true, false, true} {
		change := n.UnplugTap
		if plugged {
			change = n.AddTap
		}
		if err := change("tap0"); err != nil {
			t.Error(err)
		}
		if got := onBridge(t, n, "tap0"); got != plugged {
			t.Errorf("tap0 on the bridge: want %t, got %t", plugged, got)
		}
	}
	for range 2 {
		if err := n.DeleteRoute(pods); err != nil {
			t.Error(err)
		}
		if err := n.DeleteTap("tap0"); err != nil {
			t.Error(err)
		}
	}
	if names := interfaces(t, n); slices.Contains(names, "tap0") {
		t.Errorf("interfaces after DeleteTap: got %v", names)
	}
}

// onBridge reports whether a device is joined to the namespace's bridge.
func onBridge(t *testing.T, n Namespace, device string) (joined bool) {
	t.Helper()
	if err := n.Do(func() error {
		bridge, err := netlink.LinkByName(BridgeName)
		if err != nil {
			return err
		}
		link, err := netlink.LinkByName(device)
		if err == nil {
			joined = link.Attrs().MasterIndex == bridge.Attrs().Index
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return joined
}

func interfaces(t *testing.T, n Namespace) []string {
	t.Helper()
	var names []string
	err := n.Do(func() error {
		all, err := net.Interfaces()
		for _, one := range all {
			names = append(names, one.Name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestRemoveEndsWhatIsInsideAndNothingElse(t *testing.T) {
	n := create(t, "carve-test-processes")
	outside := exec.Command("sleep", "60")
	if err := outside.Start(); err != nil {
		t.Fatal(err)
	}
	inside := exec.Command("sleep", "60")
	if err := n.Start(inside); err != nil {
		t.Fatal(err)
	}
	if pids, err := n.Processes(); err != nil || !slices.Equal(pids, []int{inside.Process.Pid}) {
		t.Errorf("Processes: want [%d], got %v, %v", inside.Process.Pid, pids, err)
	}
	// Not waited for until Remove has returned: a process that ended is no longer there.
	if err := Remove(t.Context(), n.Name()); err != nil {
		t.Error(err)
	}
	if err := inside.Wait(); err == nil {
		t.Error("the process inside ended by itself, want it ended by a signal")
	}
	if err := outside.Process.Signal(os.Interrupt); err != nil {
		t.Errorf("the process outside is gone: %v", err)
	}
	_ = outside.Wait()
}

func TestANamespaceWhoseProcessIsNoMoreIsRemoved(t *testing.T) {
	const prefix = "carve-test-abandoned-"
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	abandoned := create(t, prefix+strconv.Itoa(ended.Process.Pid))
	mine := create(t, NameOf(prefix))
	other := create(t, prefix+"other")
	if err := RemoveAbandoned(t.Context(), prefix); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[Namespace]bool{abandoned: false, mine: true, other: true} {
		if got, err := n.exists(); err != nil || got != want {
			t.Errorf("%s is there: want %t, got %t, error %v", n.Name(), want, got, err)
		}
	}
}
