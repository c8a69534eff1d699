//go:build kernel

package lvmd_test

import (
	"bytes"
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

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd"
	"github.com/carve-csi/carve/pkg/must"
)

// crashing runs lvmd and kills it with SIGKILL at a crash point: the one of the given number,
// of all or of the given name. It writes the point to the file "crashed" in dir.
func crashing(dir, number, name string) error {
	crashAt, err := strconv.ParseInt(number, 10, 64)
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
	host, err := lvm.NewHost(&lvm.Runner{Binary: "lvm", Timeout: time.Minute, SystemDir: system, Lasting: true})
	if err != nil {
		return err
	}
	options := lvmd.Options{
		Config: c, StateDir: state, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		LVM: host, Devices: host,
	}
	options.JournalEachWipedChunk()
	options.CrashAt(func(place string) {
		if (name == "" || name == place) && count.Add(1) == crashAt {
			_ = os.WriteFile(filepath.Join(dir, "crashed"), []byte(place), 0o600)
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
	server := service.NewServer(lvmd.Socket)
	service.Start()
	return server.Serve(listener)
}

// killCommand runs the real lvm and kills it with SIGKILL before one of its effects: a write to
// a disk or a change of the device mapper or of device nodes. The file "kill" holds the
// command's name, the effect's number, and "lvmd" to kill lvmd as well, or "disk" to give a
// disk the table in the file "table" instead. The file "effects" gets their number if the
// command ends, otherwise the file "killed" exists. killCommand reports whether "kill" named
// this command.
func killCommand(dir string) bool {
	if len(os.Args) < 2 {
		return false
	}
	d, ok := takeKillOrder(dir, os.Args[1])
	if !ok {
		return false
	}
	effects := 0
	code, err := trace(observer{entering: func(_ int, regs *unix.PtraceRegs) bool {
		if isEffect(regs) {
			if effects++; effects == d.number && d.whom == "disk" {
				switchTable(dir)
			}
		}
		return effects == d.number && d.whom != "disk"
	}})
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "kill:", err)
	case effects < d.number:
		d.ended(dir, "", effects)
	default:
		d.done(dir, "")
	}
	os.Exit(code)
	return true
}

func switchTable(dir string) {
	text, err := os.ReadFile(filepath.Join(dir, "table"))
	if err == nil {
		name, table, _ := strings.Cut(string(text), " ")
		err = setTable(name, table)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "switch:", err)
	}
}

// killLasting is killCommand for a lasting lvm, whose input it watches for the commands.
func killLasting(dir string) {
	var line []byte
	var d killOrder
	number, effects := 0, 0 // number is 0 while no kill is due
	killed := false
	code, err := trace(observer{
		entering: func(_ int, regs *unix.PtraceRegs) bool {
			switch {
			case number == 0:
			case isEffect(regs):
				effects++
				killed = effects == number
			case isReadOfInput(regs): // The command has ended.
				d.ended(dir, lastingOne, effects)
				number = 0
			}
			return killed
		},
		done: func(pid int, regs *unix.PtraceRegs) {
			if !isReadOfInput(regs) || int64(regs.Rax) <= 0 {
				return
			}
			b := make([]byte, regs.Rax)
			if _, err := unix.PtracePeekData(pid, uintptr(regs.Rsi), b); err != nil {
				fmt.Fprintln(os.Stderr, "kill:", err)
				return
			}
			line = append(line, b...)
			if !bytes.HasSuffix(line, []byte("\n")) {
				return
			}
			command, _, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
			line = nil
			var ok bool
			if d, ok = takeKillOrder(dir, command); ok {
				number, effects = d.number, 0
			}
		},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "kill:", err)
	}
	if killed {
		d.done(dir, lastingOne)
	}
	os.Exit(code)
}

const lastingOne = "lasting "

type killOrder struct {
	command, whom string
	number        int
}

func takeKillOrder(dir, command string) (d killOrder, ok bool) {
	file := filepath.Join(dir, "kill")
	b, err := os.ReadFile(file)
	if err != nil {
		return d, false
	}
	if _, err := fmt.Sscan(string(b), &d.command, &d.number, &d.whom); err != nil || d.command != command {
		return d, false
	}
	_ = os.Remove(file)
	return d, true
}

func (d killOrder) ended(dir, kind string, effects int) {
	_ = os.WriteFile(filepath.Join(dir, "effects"), []byte(kind+strconv.Itoa(effects)), 0o600)
}

func (d killOrder) done(dir, kind string) {
	_ = os.WriteFile(filepath.Join(dir, "killed"), []byte(kind+d.command), 0o600)
	if d.whom == "lvmd" {
		_ = syscall.Kill(os.Getppid(), syscall.SIGKILL)
	}
}

type observer struct {
	// entering is called before each system call; the process is killed instead if it returns
	// true.
	entering func(pid int, regs *unix.PtraceRegs) (kill bool)
	// done is called after each system call; it may be nil.
	done func(pid int, regs *unix.PtraceRegs)
}

func trace(o observer) (code int, err error) {
	path, err := exec.LookPath("lvm")
	if err != nil {
		return 1, err
	}
	cmd := exec.Command(path, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if fd, given := os.LookupEnv("LVM_REPORT_FD"); given && fd == "3" {
		report := os.NewFile(3, "report")
		defer report.Close()
		cmd.ExtraFiles = []*os.File{report}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	// Only the thread that started it may trace it.
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	pid := cmd.Process.Pid
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
		return 1, err
	}
	if err := unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_EXITKILL); err != nil {
		return 1, err
	}
	for entering, signal := true, 0; ; {
		if err := unix.PtraceSyscall(pid, signal); err != nil {
			return 1, err
		}
		if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
			return 1, err
		}
		signal = 0
		switch {
		case status.Exited():
			return status.ExitStatus(), nil
		case status.Signaled():
			return 128 + int(status.Signal()), nil
		case status.StopSignal() != unix.SIGTRAP|0x80:
			if status.StopSignal() != unix.SIGTRAP {
				signal = int(status.StopSignal())
			}
			continue
		}
		if entering || o.done != nil {
			var regs unix.PtraceRegs
			if err := unix.PtraceGetRegs(pid, &regs); err != nil {
				return 1, err
			}
			if !entering {
				o.done(pid, &regs)
			} else if o.entering(pid, &regs) {
				_ = unix.Kill(pid, unix.SIGKILL)
				_, err := unix.Wait4(pid, &status, 0, nil)
				return 128 + int(unix.SIGKILL), err
			}
		}
		entering = !entering
	}
}

func isReadOfInput(regs *unix.PtraceRegs) bool {
	return regs.Orig_rax == unix.SYS_READ && regs.Rdi == 0
}

// isEffect reports whether a system call has effects that outlive the command.
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

func (n *node) startCrashing(number int) *process {
	n.t.Helper()
	return n.startCrashingAt("", number)
}

func (n *node) startCrashingAt(place string, times int) *process {
	n.t.Helper()
	n.writeConfig()
	_ = os.Remove(filepath.Join(n.dir, "crashed"))
	self := must.Get(os.Executable())(n.t)
	cmd := exec.Command(self)
	cmd.Args = []string{"crashing-lvmd", n.dir, strconv.Itoa(times), place}
	return n.launch(cmd)
}

func (p *process) hasEnded(timeout time.Duration) bool {
	select {
	case err := <-p.exited:
		p.exited <- err
		return true
	case <-time.After(timeout):
		return false
	}
}

// read returns nothing for a missing file.
func (n *node) read(name string) string {
	f, err := os.Open(filepath.Join(n.dir, name))
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(f)
	return strings.TrimSpace(string(b))
}
