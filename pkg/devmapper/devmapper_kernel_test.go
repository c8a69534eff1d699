//go:build kernel

package devmapper_test

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/devmapper"
	"github.com/carve-csi/carve/pkg/must"
)

const (
	name = "carve.devmapper-test"
	disk = "/dev/vdb"
)

func number(t *testing.T) string {
	t.Helper()
	var st unix.Stat_t
	must.Succeed(t, unix.Stat(disk, &st))
	return fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
}

// request returns memory for a table with one target.
func request(params string) ([]byte, int) {
	words := make([]uint64, os.Getpagesize()/8)
	memory := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), os.Getpagesize())
	return memory, copy(memory[devmapper.ParamsOffset:], params+"\x00")
}

func is(t *testing.T, what string, want devmapper.Device) devmapper.Device {
	t.Helper()
	got, err := devmapper.Status(name)
	want.Major, want.Minor, want.UUID = got.Major, got.Minor, "CARVE-TEST"
	if err != nil || got != want {
		t.Fatalf("%s: %+v, error %v, want %+v", what, got, err, want)
	}
	return got
}

func TestADevicesLife(t *testing.T) {
	if _, err := devmapper.Status(name); !errors.Is(err, devmapper.ErrNotFound) {
		t.Fatalf("a device before it is made: error %v", err)
	}
	must.Succeed(t, devmapper.Create(name, "CARVE-TEST"))
	t.Cleanup(func() {
		if err := devmapper.Remove(name); err != nil && !errors.Is(err, devmapper.ErrNotFound) {
			t.Error(err)
		}
	})
	made := is(t, "without a table", devmapper.Device{})
	if all, err := devmapper.List(); err != nil || !slices.Contains(all, devmapper.Entry{Name: name, Major: made.Major, Minor: made.Minor}) {
		t.Errorf("devices %v, error %v, want %s as %d:%d among them", all, err, name, made.Major, made.Minor)
	}
	if targets, err := devmapper.TableStatus(name); err != nil || len(targets) != 0 {
		t.Errorf("status %+v, error %v, want none", targets, err)
	}

	memory, n := request(number(t) + " 2048")
	must.Get(devmapper.LoadSecret(name, "linear", 4096, memory, n))(t)
	d := is(t, "with a table", devmapper.Device{Active: true})
	want := []devmapper.Target{{Length: 4096, Kind: "linear", Params: number(t) + " 2048"}}
	for what, read := range map[string]func() ([]devmapper.Target, error){
		"by name":   func() ([]devmapper.Target, error) { return devmapper.Table(name) },
		"by number": func() ([]devmapper.Target, error) { return devmapper.TableOf(d.Major, d.Minor) },
	} {
		if got, err := read(); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("table %s: %+v, error %v, want %+v", what, got, err, want)
		}
	}

	if slices.Max(memory[devmapper.ParamsOffset:]) != 0 {
		t.Error("what the table was made with is left in memory")
	}
	again, _ := request("")
	got, err := devmapper.ReadSecret(name, "linear", again)
	if read := string(again[devmapper.ParamsOffset:][:got]); err != nil || read != number(t)+" 2048\x00" {
		t.Errorf("read back %q, error %v", read, err)
	}
	if _, err := devmapper.ReadSecret(name, "crypt", again); err == nil || !strings.Contains(err.Error(), "is not what it was made with") {
		t.Errorf("a table of another kind: error %v", err)
	}

	if err := devmapper.Message(name, "nothing that it knows"); err == nil || errors.Is(err, devmapper.ErrNotFound) {
		t.Errorf("a message to a target that takes none: error %v, want it refused", err)
	}
	if err := devmapper.Message(name+"-other", "x"); !errors.Is(err, devmapper.ErrNotFound) {
		t.Errorf("a message to no device: error %v", err)
	}

	// A table that another program loads waits and is dropped.
	memory, n = request("nothing of that kind")
	if _, err := devmapper.LoadSecret(name, "linear", 4096, memory, n); err == nil {
		t.Error("a table with senseless parameters was loaded")
	}
	if err := devmapper.Clear(name); err != nil {
		t.Error(err)
	}
	is(t, "after a table that was refused", devmapper.Device{Active: true})

	node := fmt.Sprintf("%s/%s", t.TempDir(), "node")
	must.Succeed(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(d.Major, d.Minor))))
	f, err := os.Open(node)
	if err != nil {
		t.Fatal(err)
	}
	is(t, "open", devmapper.Device{Active: true, OpenCount: 1})
	if err := devmapper.Remove(name); !errors.Is(err, devmapper.ErrBusy) {
		t.Errorf("removing what is open: error %v", err)
	}
	must.Succeed(t, f.Close())
	if err := devmapper.Remove(name); err != nil {
		t.Error(err)
	}
	if err := devmapper.Remove(name); !errors.Is(err, devmapper.ErrNotFound) {
		t.Errorf("removing it again: error %v", err)
	}
}

func TestATargetIsKnownOrNot(t *testing.T) {
	for kind, want := range map[string]bool{"linear": true, "thin-pool": true, "no-such-target": false} {
		if known, err := devmapper.ProvideTarget(kind); err != nil || known != want {
			t.Errorf("%s: known %t, error %v, want %t", kind, known, err, want)
		}
	}
}
