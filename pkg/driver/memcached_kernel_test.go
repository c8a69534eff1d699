//go:build kernel && virtual

package driver_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

const memcachedAddress = "127.0.0.1:11311"

// TestRealMemcachedIsWarmAfterARestart runs memcached as in the examples, with
// its items in a file on persistent memory: the next process must have them.
func TestRealMemcachedIsWarmAfterARestart(t *testing.T) {
	r := newReal(t, "/dev/pmem0", "pmem")
	v := r.volume("memcached", "ext4")
	access := filesystemAccess(writer)
	must.Succeed(r.t, r.stage(v, access))
	must.Succeed(r.t, r.publish(v, "pod", access, false))
	file := filepath.Join(r.target(v, "pod"), "items")
	const value = "kept-over-a-restart"

	stop := startMemcached(t, file)
	if reply := askMemcached(t, fmt.Sprintf("set key 0 0 %d\r\n%s\r\nget key", len(value), value)); !strings.Contains(reply, "STORED") || !strings.Contains(reply, value) {
		t.Errorf("memcached: want STORED and the value, got %q", reply)
	}
	stop()
	content, err := os.ReadFile(file)
	if err != nil || !bytes.Contains(content, []byte(value)) {
		t.Errorf("the value is not in the file on the volume, of %d bytes; error %v", len(content), err)
	}
	// memcached counts seconds from its start and may be one ahead of the
	// clock. The next process rejects items saved in the future.
	time.Sleep(2 * time.Second)
	stop = startMemcached(t, file)
	if reply := askMemcached(t, "get key"); !strings.Contains(reply, value) {
		t.Errorf("after the restart: want the value, got %q", reply)
	}
	stop()
	must.Succeed(r.t, r.unpublish(v, "pod"))
	must.Succeed(r.t, r.unstage(v))
	r.delete(v)
	r.waitForSpace()
}

func startMemcached(t *testing.T, file string) (stop func()) {
	t.Helper()
	_, port, err := net.SplitHostPort(memcachedAddress)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	command := exec.Command("memcached", "--user=root", "--memory-file="+file, "--memory-limit=64", "--listen=127.0.0.1", "--port="+port)
	command.Stdout, command.Stderr = &log, &log
	must.Succeed(t, command.Start())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("memcached: %s", log.String())
		}
	})
	return func() {
		t.Helper()
		// SIGTERM would drop everything, see --memory-file in memcached(1).
		if err := command.Process.Signal(syscall.SIGUSR1); err != nil {
			t.Error(err)
		}
		if err := command.Wait(); err != nil {
			t.Errorf("memcached: %v\n%s", err, log.String())
		}
	}
}

func askMemcached(t *testing.T, commands string) string {
	t.Helper()
	var reply []byte
	waittest.Succeeds(t, "memcached answers", func() error {
		connection, err := net.Dial("tcp", memcachedAddress)
		if err != nil {
			return err
		}
		defer connection.Close()
		if _, err := io.WriteString(connection, commands+"\r\nquit\r\n"); err != nil {
			return err
		}
		reply, err = io.ReadAll(connection)
		return err
	})
	return string(reply)
}
