package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/carve-csi/carve/pkg/must"
	"github.com/carve-csi/carve/pkg/waittest"
)

// TestMain lets the test binary stand in for lvmd and for an lvm that never answers.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "carve-lvmd":
		main()
		os.Exit(0)
	case "lvm":
		if err := os.WriteFile(filepath.Join(filepath.Dir(os.Args[0]), "asked"), nil, 0o600); err != nil {
			os.Exit(1)
		}
		time.Sleep(time.Hour)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// starting runs an lvmd whose start hangs until signals end it; wait returns its result.
func starting(t *testing.T) (send func(syscall.Signal), wait func() error) {
	t.Helper()
	dir := t.TempDir()
	self := must.Get(os.Executable())(t)
	for _, name := range []string{"carve-lvmd", "lvm"} {
		must.Succeed(t, os.Symlink(self, filepath.Join(dir, name)))
	}
	var log bytes.Buffer
	c := exec.CommandContext(t.Context(), filepath.Join(dir, "carve-lvmd"),
		"--config", file(t, valid), "--socket", filepath.Join(dir, "socket"), "--state-dir", filepath.Join(dir, "state"), "--lock-dir", filepath.Join(dir, "locks"),
		"--controller=", "--ops-listen=", "--lvm", filepath.Join(dir, "lvm"), "--lvm-lasting=false")
	c.Stdout, c.Stderr = &log, &log
	must.Succeed(t, c.Start())
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	waittest.Succeeds(t, "lvmd asks LVM for something", func() error {
		select {
		case err := <-ended:
			t.Fatalf("lvmd ended: %v\n%s", err, &log)
		default:
		}
		_, err := os.Stat(filepath.Join(dir, "asked"))
		return err
	})
	send = func(s syscall.Signal) {
		must.Succeed(t, c.Process.Signal(s))
	}
	wait = func() error {
		err := <-ended
		t.Logf("lvmd's log:\n%s", &log)
		return err
	}
	return send, wait
}

func TestALVMDThatIsStoppedWhileItStartsEndsInGoodOrder(t *testing.T) {
	send, wait := starting(t)
	send(syscall.SIGTERM)
	if err := wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func TestALVMDThatIsToReloadWhileItStartsGoesOn(t *testing.T) {
	send, wait := starting(t)
	send(syscall.SIGHUP)
	send(syscall.SIGTERM)
	if err := wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}
