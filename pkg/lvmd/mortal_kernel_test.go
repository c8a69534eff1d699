//go:build kernel

package lvmd_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd"
)

// A mortal lvmd is the real one, in a process of its own, that kills itself with
// SIGKILL at one place between two effects: the one of the given number.
//
// Its arguments are the folder that node keeps for lvmd and the number; the place
// is written to the folder's file "died".
func mortal(dir, number string) error {
	dieAt, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return err
	}
	c, err := config.Load(filepath.Join(dir, "lvmd.yaml"))
	if err != nil {
		return err
	}
	state := filepath.Join(dir, "state")
	unlock, err := lvmd.LockStateDir(state)
	if err != nil {
		return err
	}
	defer unlock()
	system := filepath.Join(state, "lvm")
	if err := lvm.MakeSystemDir(system); err != nil {
		return err
	}
	var count atomic.Int64
	host := lvm.NewHost(&lvm.Runner{Binary: "lvm", Timeout: time.Minute, SystemDir: system})
	options := lvmd.Options{
		Config: c, StateDir: state, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		LVM: host, Devices: host,
	}
	options.DieAt(func(place string) {
		if count.Add(1) == dieAt {
			_ = os.WriteFile(filepath.Join(dir, "died"), []byte(place), 0o600)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
	service, err := lvmd.New(context.Background(), options)
	if err != nil {
		return err
	}
	listener, err := lvmd.Listen(filepath.Join(dir, "lvmd.sock"))
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	service.Register(server)
	service.Start()
	return server.Serve(listener)
}

// slay runs the real lvm and kills it with SIGKILL before one of its effects: the
// one of the number in the file "slay", which holds a command's name, a number, and
// "lvmd" if lvmd is to be killed in the same moment. Effects are writes to disks,
// changes of the kernel's device mapper and of device nodes. The number of effects
// that there were is written to the file "effects" when the command came to its end,
// and the file "slain" when it did not.
// It tells whether the file was about this command.
func slay(dir string) bool {
	file := filepath.Join(dir, "slay")
	b, err := os.ReadFile(file)
	if err != nil || len(os.Args) < 2 {
		return false
	}
	var command, whom string
	var number int
	if _, err := fmt.Sscan(string(b), &command, &number, &whom); err != nil || command != os.Args[1] {
		return false
	}
	_ = os.Remove(file)
	code, effects, err := trace(number)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "slay:", err)
	case effects < number:
		_ = os.WriteFile(filepath.Join(dir, "effects"), []byte(strconv.Itoa(effects)), 0o600)
	default:
		_ = os.WriteFile(filepath.Join(dir, "slain"), []byte(command), 0o600)
		if whom == "lvmd" {
			_ = syscall.Kill(os.Getppid(), syscall.SIGKILL)
		}
	}
	os.Exit(code)
	return true
}

// trace runs the real lvm with this process' arguments and kills it before the
// effect of the number. It returns how many effects there were, with that one.
func trace(number int) (code, effects int, err error) {
	path, err := exec.LookPath("lvm")
	if err != nil {
		return 1, 0, err
	}
	cmd := exec.Command(path, os.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	// Its thread started it, and only that thread may trace it.
	if err := cmd.Start(); err != nil {
		return 1, 0, err
	}
	pid := cmd.Process.Pid
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
		return 1, 0, err
	}
	if err := unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_EXITKILL); err != nil {
		return 1, 0, err
	}
	for entering, signal := true, 0; ; {
		if err := unix.PtraceSyscall(pid, signal); err != nil {
			return 1, effects, err
		}
		if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
			return 1, effects, err
		}
		signal = 0
		switch {
		case status.Exited():
			return status.ExitStatus(), effects, nil
		case status.Signaled():
			return 128 + int(status.Signal()), effects, nil
		case status.StopSignal() != unix.SIGTRAP|0x80:
			if status.StopSignal() != unix.SIGTRAP {
				signal = int(status.StopSignal())
			}
			continue
		}
		if entering {
			var regs unix.PtraceRegs
			if err := unix.PtraceGetRegs(pid, &regs); err != nil {
				return 1, effects, err
			}
			if isEffect(&regs) {
				if effects++; effects == number {
					_ = unix.Kill(pid, unix.SIGKILL)
					_, err := unix.Wait4(pid, &status, 0, nil)
					return 128 + int(unix.SIGKILL), effects, err
				}
			}
		}
		entering = !entering
	}
}

// isEffect tells whether a system call changes what outlives the command.
func isEffect(regs *unix.PtraceRegs) bool {
	switch regs.Orig_rax {
	case unix.SYS_PWRITE64, unix.SYS_SYMLINK, unix.SYS_UNLINK, unix.SYS_MKNOD, unix.SYS_MKNODAT, unix.SYS_RENAME:
		return true
	case unix.SYS_IOCTL:
		const deviceMapper = 0xfd
		switch regs.Rsi & 0xff { // linux/dm-ioctl.h
		case 3, 4, 5, 6, 9, 10, 14: // create, remove, rename, suspend and resume, load, clear, message
			return regs.Rsi>>8&0xff == deviceMapper
		}
	}
	return false
}

// startMortal starts a mortal lvmd that dies at the place of the number.
func (n *node) startMortal(number int) *process {
	n.t.Helper()
	n.writeConfig()
	_ = os.Remove(filepath.Join(n.dir, "died"))
	self, err := os.Executable()
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Args = []string{"mortal-lvmd", n.dir, strconv.Itoa(number)}
	return n.launch(cmd)
}

// dead waits a moment for the end of a process that may be about to die.
func (p *process) dead(patience time.Duration) bool {
	select {
	case err := <-p.exited:
		p.exited <- err
		return true
	case <-time.After(patience):
		return false
	}
}

// read returns a small file's contents, or nothing.
func (n *node) read(name string) string {
	f, err := os.Open(filepath.Join(n.dir, name))
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(f)
	return strings.TrimSpace(string(b))
}
